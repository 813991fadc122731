// The passes of vector_ops.h other than the AdamW step, in SIMD.
#include <cstring>

#include "halfstep/kernels/cpu/simd_kernels.h"
#include "halfstep/kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halfstep/kernels/cpu/vector_ops_simd.cc"
// foreach_target.h has to come first.
// clang-format off
#include "hwy/foreach_target.h"
#include "halfstep/kernels/cpu/tile_codec-inl.h"
// clang-format on

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace halfstep::kernels::HWY_NAMESPACE {
namespace {

const void* at(const void* base, Dtype dtype, int64_t i) {
  return static_cast<const char*>(base) + i * dtype_bytes(dtype);
}
void* at(void* base, Dtype dtype, int64_t i) {
  return static_cast<char*>(base) + i * dtype_bytes(dtype);
}

template <Dtype kDtype>
void decode_as(float* dst, const void* src, int64_t n) {
  store_f32_groups(
      dst, n, [&](int64_t i, VecU16& unusual) HWY_ATTR { return load<kDtype>(src, i, unusual); },
      [&](int64_t i, int64_t count) {
        reference_table().convert(dst + i, Dtype::kF32, at(src, kDtype, i), kDtype, count,
                                  Rounding::kNearest, {});
      });
}

template <Dtype kDtype, Rounding kRounding>
void encode_as(void* dst, const float* x, int64_t n, const NoiseRun& noise) {
  encode_blocks<kDtype, kRounding>(
      dst, n, noise, [&](int64_t i, VecU16&) HWY_ATTR { return load_f32(x, i); },
      [&](int64_t i, int64_t count) {
        reference_table().convert(at(dst, kDtype, i), kDtype, x + i, Dtype::kF32, count, kRounding,
                                  advanced(noise, i));
      });
}

template <Dtype kDst, Dtype kSrc, Rounding kRounding>
void accumulate_as(void* dst, const void* src, int64_t n, const NoiseRun& noise) {
  const auto sum = [&](int64_t i, VecU16& unusual) HWY_ATTR {
    const Pair x = load<kDst>(dst, i, unusual), y = load<kSrc>(src, i, unusual);
    return Pair{hn::Add(x.even, y.even), hn::Add(x.odd, y.odd)};
  };
  const auto by_reference = [&](int64_t i, int64_t count) {
    reference_table().accumulate(at(dst, kDst, i), kDst, at(src, kSrc, i), kSrc, count, kRounding,
                                 advanced(noise, i));
  };
  if constexpr (kDst == Dtype::kF32) {
    store_f32_groups(static_cast<float*>(dst), n, sum, by_reference);
  } else {
    encode_blocks<kDst, kRounding>(dst, n, noise, sum, by_reference);
  }
}

// The 8 squares of a step are spread over kSumVectors vectors of FP64.
using TagF64 = hn::Repartition<double, TagF32>;
inline constexpr TagF64 f64;
inline constexpr size_t kLanes64 = HWY_LANES(double);
inline constexpr size_t kSumVectors = 8 / kLanes64;

template <Dtype kDtype>
HWY_INLINE hn::Vec<TagF64> load_f64(const void* x, int64_t i) {
  const hn::Rebind<float, TagF64> half;
  if constexpr (kDtype == Dtype::kF32) {
    return hn::PromoteTo(f64, hn::LoadU(half, static_cast<const float*>(x) + i));
  } else {
    const hn::Rebind<uint16_t, TagF64> codes;
    const hn::Rebind<uint32_t, TagF64> words;
    const auto wide = hn::PromoteTo(words, hn::LoadU(codes, static_cast<const uint16_t*>(x) + i));
    return hn::PromoteTo(f64, hn::BitCast(half, hn::ShiftLeft<16>(wide)));
  }
}

template <Dtype kDtype>
double sum_squares_as(const void* x, int64_t n) {
  hn::Vec<TagF64> sums[kSumVectors];
  for (auto& sum : sums) sum = hn::Zero(f64);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t k = 0; k < kSumVectors; ++k) {
      const auto value = load_f64<kDtype>(x, i + static_cast<int64_t>(k * kLanes64));
      sums[k] = hn::Add(sums[k], hn::Mul(value, value));
    }
  }
  alignas(64) double lane[8];
  for (size_t k = 0; k < kSumVectors; ++k) hn::Store(sums[k], f64, lane + k * kLanes64);
  float rest[8];
  decode(rest, at(x, kDtype, i), kDtype, n - i);
  for (int64_t j = 0; i + j < n; ++j) lane[j] += double{rest[j]} * double{rest[j]};
  for (int width = 4; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

template <Dtype kDtype>
void sum_ranks_as(float* dst, std::span<const void* const> contributions, int64_t begin,
                  int64_t n) {
  store_f32_groups(
      dst + begin, n,
      [&](int64_t i, VecU16& unusual) HWY_ATTR {
        Pair sum = load<kDtype>(contributions[0], begin + i, unusual);
        for (size_t rank = 1; rank < contributions.size(); ++rank) {
          const Pair x = load<kDtype>(contributions[rank], begin + i, unusual);
          sum = {hn::Add(sum.even, x.even), hn::Add(sum.odd, x.odd)};
        }
        return sum;
      },
      [&](int64_t i, int64_t count) {
        reference_table().sum_ranks(dst, contributions, kDtype, begin + i, count);
      });
}

}  // namespace

void decode(float* dst, const void* src, Dtype dtype, int64_t n) {
  switch (dtype) {
    case Dtype::kBF16:
      return decode_as<Dtype::kBF16>(dst, src, n);
    case Dtype::kUE6M10:
      return decode_as<Dtype::kUE6M10>(dst, src, n);
    default:
      std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
  }
}

void encode(void* dst, Dtype dtype, const float* x, int64_t n, Rounding rounding,
            const NoiseRun& noise) {
  const bool nearest = rounding == Rounding::kNearest;
  switch (dtype) {
    case Dtype::kBF16:
      return nearest ? encode_as<Dtype::kBF16, Rounding::kNearest>(dst, x, n, noise)
                     : encode_as<Dtype::kBF16, Rounding::kStochastic>(dst, x, n, noise);
    case Dtype::kUE6M10:
      return nearest ? encode_as<Dtype::kUE6M10, Rounding::kNearest>(dst, x, n, noise)
                     : encode_as<Dtype::kUE6M10, Rounding::kStochastic>(dst, x, n, noise);
    default:
      std::memcpy(dst, x, static_cast<size_t>(n) * sizeof(float));
  }
}

void accumulate(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype, int64_t n,
                Rounding rounding, const NoiseRun& noise) {
  PathCounters::add(path_counters.vector_op, n);
  constexpr Dtype kF32 = Dtype::kF32, kBF16 = Dtype::kBF16;
  constexpr Rounding kNearest = Rounding::kNearest, kStochastic = Rounding::kStochastic;
  const bool fp32 = src_dtype == kF32;
  if (dst_dtype == kF32) {
    return fp32 ? accumulate_as<kF32, kF32, kNearest>(dst, src, n, noise)
                : accumulate_as<kF32, kBF16, kNearest>(dst, src, n, noise);
  }
  if (rounding == kNearest) {
    return fp32 ? accumulate_as<kBF16, kF32, kNearest>(dst, src, n, noise)
                : accumulate_as<kBF16, kBF16, kNearest>(dst, src, n, noise);
  }
  return fp32 ? accumulate_as<kBF16, kF32, kStochastic>(dst, src, n, noise)
              : accumulate_as<kBF16, kBF16, kStochastic>(dst, src, n, noise);
}

double sum_squares_run(const void* x, Dtype dtype, int64_t n) {
  PathCounters::add(path_counters.vector_op, n);
  return dtype == Dtype::kF32 ? sum_squares_as<Dtype::kF32>(x, n)
                              : sum_squares_as<Dtype::kBF16>(x, n);
}

void sum_ranks(float* dst, std::span<const void* const> contributions, Dtype dtype, int64_t begin,
               int64_t n) {
  PathCounters::add(path_counters.vector_op, n);
  return dtype == Dtype::kF32 ? sum_ranks_as<Dtype::kF32>(dst, contributions, begin, n)
                              : sum_ranks_as<Dtype::kBF16>(dst, contributions, begin, n);
}

int64_t split(uint16_t* weight, int16_t* remainder, const float* master, int64_t n) {
  int64_t lost = 0, i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    VecU16 unusual = hn::Zero(u16);
    hn::Vec<TagI16> tie;
    const SplitCodes codes = split(load_f32(master, i), unusual, tie);
    if (HWY_UNLIKELY(any(unusual))) {
      PathCounters::add(path_counters.handed_over, kGroup);
      lost += reference_table().split(weight + i, remainder + i, master + i, kGroup);
      continue;
    }
    store_u16(codes.weight, weight, i);
    store_u16(codes.remainder, remainder, i);
    lost += static_cast<int64_t>(hn::CountTrue(i16, hn::Lt(tie, hn::Zero(i16))));
  }
  if (i < n) PathCounters::add(path_counters.handed_over, n - i);
  return lost + reference_table().split(weight + i, remainder + i, master + i, n - i);
}

void join(float* master, const uint16_t* weight, const int16_t* remainder, int64_t n) {
  store_f32_groups(
      master, n,
      [&](int64_t i, VecU16&)
          HWY_ATTR { return join(load_u16(weight, i), load_u16(remainder, i)); },
      [&](int64_t i, int64_t count) {
        reference_table().join(master + i, weight + i, remainder + i, count);
      });
}

}  // namespace halfstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR
