// 64-bit numbers appended to a nameless temporary file and read back in order: lists that grow with
// the data (one entry per document) and so may not live in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "halfstep/io/file.h"

namespace halfstep::data {

class Spool {
 public:
  // `path` names the file only until this returns; it should be on the disk that holds the output.
  explicit Spool(const std::filesystem::path& path);

  void append(int64_t value);
  // Calls body with everything that was appended, in order, in chunks. May be called repeatedly.
  void replay(const std::function<void(std::span<const int64_t>)>& body);

 private:
  void flush();

  io::FileDescriptor file_;
  std::vector<int64_t> buffer_;
  int64_t flushed_ = 0;
};

}  // namespace halfstep::data
