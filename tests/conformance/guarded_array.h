// A test array in memory of its own, at an odd alignment, with guard bytes on both sides. It is
// allocated to the byte, so address sanitizers see reads beyond the guards as well.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "halfstep/core/bf16.h"
#include "halfstep/core/dtype.h"
#include "test_data.h"

namespace halfstep::conformance {

class GuardedArray {
 public:
  GuardedArray() = default;
  // `misalignment` in elements.
  GuardedArray(Dtype dtype, int64_t n, int64_t misalignment)
      : dtype_(dtype),
        n_(n),
        before_((kGuard + misalignment) * dtype_bytes(dtype)),
        bytes_(static_cast<size_t>(before_ + (n + kGuard) * dtype_bytes(dtype)), kGuardByte) {}

  void* data() { return bytes_.data() + before_; }
  const void* data() const { return bytes_.data() + before_; }
  int64_t size() const { return n_; }
  Dtype dtype() const { return dtype_; }

  uint32_t get(int64_t i) const {
    uint32_t bits = 0;
    std::memcpy(&bits, at(i), bytes_per_element());
    return bits;
  }
  void set(int64_t i, uint32_t bits) {
    std::memcpy(const_cast<unsigned char*>(at(i)), &bits, bytes_per_element());
  }
  // Element i of the array is element first + i of the tensor.
  void fill(DataClass data, Role role, uint64_t seed, int64_t first) {
    for (int64_t i = 0; i < n_; ++i) set(i, test_value(data, role, dtype_, seed, first + i));
  }

  bool guards_untouched() const {
    const auto untouched = [](const unsigned char* begin, const unsigned char* end) {
      for (; begin != end; ++begin) {
        if (*begin != kGuardByte) return false;
      }
      return true;
    };
    return untouched(bytes_.data(), bytes_.data() + before_) &&
           untouched(at(n_), bytes_.data() + bytes_.size());
  }

  bool is_nan(uint32_t bits) const {
    switch (dtype_) {
      case Dtype::kF32:
        return is_nan_bits(bits);
      case Dtype::kBF16:
        return is_nan_bits(bits << 16);
      case Dtype::kUE6M10:
        return bits == 0xFFFF;
      case Dtype::kI16:
        return false;
    }
    return false;
  }

  // The first element whose bits differ from those of `expected`, any NaN being equal to any NaN;
  // −1 if there is none.
  int64_t first_difference(const GuardedArray& expected) const {
    for (int64_t i = 0; i < n_; ++i) {
      const uint32_t a = get(i), b = expected.get(i);
      if (a != b && !(is_nan(a) && is_nan(b))) return i;
    }
    return -1;
  }

 private:
  static constexpr int64_t kGuard = 16;  // elements
  static constexpr unsigned char kGuardByte = 0xA5;

  size_t bytes_per_element() const { return static_cast<size_t>(dtype_bytes(dtype_)); }
  const unsigned char* at(int64_t i) const {
    return bytes_.data() + before_ + i * dtype_bytes(dtype_);
  }

  Dtype dtype_ = Dtype::kF32;
  int64_t n_ = 0, before_ = 0;
  std::vector<unsigned char> bytes_;
};

// Equal bits and untouched guards.
inline ::testing::AssertionResult same(const char* array, const GuardedArray& actual,
                                       const GuardedArray& expected) {
  if (!actual.guards_untouched()) {
    return ::testing::AssertionFailure() << array << ": wrote outside its range";
  }
  const int64_t i = actual.first_difference(expected);
  if (i < 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << array << " (" << dtype_name(actual.dtype()) << "), element " << i << " of "
         << actual.size() << ": got 0x" << std::hex << actual.get(i) << ", the reference has 0x"
         << expected.get(i);
}

}  // namespace halfstep::conformance
