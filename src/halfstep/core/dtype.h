// The element types that halfstep stores, and how it names them on the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace halfstep {

enum class Dtype : uint8_t {
  kF32,     // IEEE binary32
  kBF16,    // the upper half of an F32
  kUE6M10,  // no sign, 6 exponent bits, 10 mantissa bits: exp_avg_sq only (docs/numerics.md §3)
  kI16,     // the remainder of a split master (docs/numerics.md §6)
};

constexpr int64_t dtype_bytes(Dtype dtype) { return dtype == Dtype::kF32 ? 4 : 2; }

// Explicit mantissa bits; 0 for integers.
constexpr int mantissa_bits(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return 23;
    case Dtype::kBF16: return 7;
    case Dtype::kUE6M10: return 10;
    case Dtype::kI16: return 0;
  }
  return 0;
}

constexpr std::string_view dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return "fp32";
    case Dtype::kBF16: return "bf16";
    case Dtype::kUE6M10: return "ue6m10";
    case Dtype::kI16: return "int16";
  }
  return "?";
}

constexpr std::optional<Dtype> parse_dtype(std::string_view name) {
  for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kUE6M10, Dtype::kI16}) {
    if (dtype_name(d) == name) return d;
  }
  return std::nullopt;
}

// How a value is brought to its stored format (docs/numerics.md §4). `auto` is resolved to one of
// these before any kernel sees it (kernels/rounding_policy.h).
enum class Rounding : uint8_t { kNearest, kStochastic };

constexpr std::string_view rounding_name(Rounding r) {
  return r == Rounding::kNearest ? "nearest" : "stochastic";
}

// Where the FP32 value of a BF16 weight lives (docs/numerics.md §6).
enum class MasterMode : uint8_t {
  kFp32,   // a separate FP32 master
  kSplit,  // a 16-bit remainder that together with the weight is the FP32 master
  kNone,   // nowhere: a BF16 weight is written with stochastic rounding, an FP32 weight is its own
};

constexpr std::string_view master_name(MasterMode m) {
  switch (m) {
    case MasterMode::kFp32: return "fp32";
    case MasterMode::kSplit: return "split";
    case MasterMode::kNone: return "none";
  }
  return "?";
}

}  // namespace halfstep
