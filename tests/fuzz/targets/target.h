// What all fuzz targets share. A target hands any bytes to one reader. Two ends are allowed: the
// reader refuses them with an InputError or UsageError, or it accepts them and keeps its promises,
// which the target checks with core's check(). Any other exception, a broken promise, a stray
// access, a large allocation or a long wait is a finding.
//
// Each target is built twice: with clang as fuzz_NAME, which libFuzzer feeds (scripts/fuzz.sh), and
// with the normal compiler as corpus_NAME, which replays tests/fuzz/corpus/NAME (make test).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace halfstep::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// What read() returns, or nothing if it refuses its input.
template <typename Read>
auto accepted(Read&& read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const InputError& error) {
    check(*error.what() != '\0', "a refusal says why");
  } catch (const UsageError& error) {
    check(*error.what() != '\0', "a refusal says why");
  }
  return std::nullopt;
}

// Takes numbers off the front of an input; zeros when it is used up.
class Numbers {
 public:
  explicit Numbers(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T take() {
    T value{};
    // Not memcpy, which may not be given the null pointer of an empty input.
    const size_t n = bytes_.copy(reinterpret_cast<char*>(&value), sizeof value);
    bytes_.remove_prefix(n);
    return value;
  }
  // In [0, n).
  int64_t below(int64_t n) { return take<uint8_t>() % n; }
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
};

// Several files in one input: each but the last stands behind its length (uint32, little endian),
// the last takes what is left. What is missing is empty, so any bytes are some files.
inline std::vector<std::string> split_parts(std::string_view input, size_t count) {
  std::vector<std::string> parts(count);
  for (size_t i = 0; i + 1 < count; ++i) {
    Numbers numbers(input);
    const size_t length = numbers.take<uint32_t>();
    input = numbers.rest();
    parts[i] = input.substr(0, length);
    input.remove_prefix(parts[i].size());
  }
  parts.back() = input;
  return parts;
}

inline std::string join_parts(const std::vector<std::string>& parts) {
  std::string input;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto length = static_cast<uint32_t>(parts[i].size());
    if (i + 1 < parts.size()) input.append(reinterpret_cast<const char*>(&length), sizeof length);
    input += parts[i];
  }
  return input;
}

}  // namespace halfstep::fuzz
