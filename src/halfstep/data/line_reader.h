// Lines of a file of any size, one at a time: memory is one line and one buffer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "halfstep/io/file.h"

namespace halfstep::data {

class LineReader {
 public:
  LineReader(const std::string& path, int64_t max_line_bytes);

  // The next line without its '\n'; false at the end of the file. A line longer than max_line_bytes
  // is cut there and flagged: the rest of it is passed over.
  bool next(std::string& line);
  bool too_long() const { return too_long_; }
  // Of the line that next() gave last, from 1.
  int64_t line_number() const { return line_number_; }

 private:
  bool fill();

  io::FileDescriptor file_;
  int64_t size_, offset_ = 0;
  int64_t max_line_bytes_;
  std::vector<char> buffer_;
  size_t at_ = 0;
  int64_t line_number_ = 0;
  bool too_long_ = false;
};

}  // namespace halfstep::data
