// All examples of a fine-tuning run, in memory (5 bytes a token), in the order of their files.
// Built once by read_examples, then read from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "halfstep/data/example.h"

namespace halfstep::data {

class ExampleSet {
 public:
  explicit ExampleSet(std::vector<std::string> files) : files_(std::move(files)) {}

  // `file` is an index in `files`, `line` counts from 1.
  void add(const Example& example, int64_t file, int64_t line);

  int64_t size() const { return static_cast<int64_t>(lines_.size()); }
  int64_t num_tokens() const { return starts_.back(); }
  int64_t num_targets() const { return num_targets_; }

  int64_t length(int64_t e) const { return starts_[e + 1] - starts_[e]; }
  std::span<const int32_t> tokens(int64_t e) const { return part(tokens_, e); }
  std::span<const uint8_t> learned(int64_t e) const { return part(learned_, e); }
  // "FILE:LINE", for messages.
  std::string name(int64_t e) const;

  // Of examples [first, first + count): every token and what is learned of it.
  uint64_t fingerprint(int64_t first, int64_t count) const;

 private:
  template <typename T>
  std::span<const T> part(const std::vector<T>& values, int64_t e) const {
    return std::span(values).subspan(starts_[e], length(e));
  }

  std::vector<std::string> files_;
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> learned_;
  std::vector<int64_t> starts_{0};
  std::vector<int32_t> file_of_;
  std::vector<int64_t> lines_;
  int64_t num_targets_ = 0;
};

}  // namespace halfstep::data
