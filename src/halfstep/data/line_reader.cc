#include "halfstep/data/line_reader.h"

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>

#include "halfstep/core/error.h"

namespace halfstep::data {
namespace {

constexpr int64_t kBufferBytes = 1 << 20;

// A pipe has no size, and would read as an empty file.
const std::string& not_special(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    throw InputError(fmt::format("'{}' is not a regular file", path), "check the path");
  }
  return path;
}

}  // namespace

LineReader::LineReader(const std::string& path, int64_t max_line_bytes)
    : file_(not_special(path), O_RDONLY), size_(file_.size()), max_line_bytes_(max_line_bytes) {}

bool LineReader::fill() {
  if (at_ < buffer_.size()) return true;
  buffer_.resize(std::min(kBufferBytes, size_ - offset_));
  file_.read_at(offset_, std::as_writable_bytes(std::span(buffer_)));
  offset_ += static_cast<int64_t>(buffer_.size());
  at_ = 0;
  return !buffer_.empty();
}

bool LineReader::next(std::string& line) {
  line.clear();
  too_long_ = false;
  if (!fill()) return false;
  ++line_number_;
  while (fill()) {
    const char* begin = buffer_.data() + at_;
    const size_t left = buffer_.size() - at_;
    const auto* newline = static_cast<const char*>(std::memchr(begin, '\n', left));
    const size_t count = newline ? newline - begin : left;
    const size_t room = static_cast<size_t>(max_line_bytes_) - line.size();
    line.append(begin, std::min(count, room));
    too_long_ = too_long_ || count > room;
    at_ += count + (newline ? 1 : 0);
    if (newline) break;
  }
  return true;
}

}  // namespace halfstep::data
