#include "halfstep/data/spool.h"

#include <fcntl.h>

#include <algorithm>

namespace halfstep::data {
namespace {

constexpr int64_t kChunk = 1 << 16;

}  // namespace

Spool::Spool(const std::filesystem::path& path) : file_(path, O_RDWR | O_CREAT | O_TRUNC) {
  std::filesystem::remove(path);
  buffer_.reserve(kChunk);
}

void Spool::append(int64_t value) {
  buffer_.push_back(value);
  if (buffer_.size() == kChunk) flush();
}

void Spool::flush() {
  file_.write_all(std::as_bytes(std::span(buffer_)));
  flushed_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

void Spool::replay(const std::function<void(std::span<const int64_t>)>& body) {
  flush();
  std::vector<int64_t> chunk;
  for (int64_t first = 0; first < flushed_; first += kChunk) {
    chunk.resize(std::min(kChunk, flushed_ - first));
    file_.read_at(first * 8, std::as_writable_bytes(std::span(chunk)));
    body(chunk);
  }
}

}  // namespace halfstep::data
