#include "halfstep/kernels/cpu/simd_tables.h"

#include <vector>

#include "halfstep/kernels/cpu/adamw_templates.h"
#include "halfstep/kernels/cpu/path_counters.h"
#include "halfstep/kernels/cpu/simd_kernels.h"
#include "halfstep/kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halfstep/kernels/cpu/simd_tables.cc"
// foreach_target.h has to come first.
// clang-format off
#include "hwy/foreach_target.h"
#include "halfstep/kernels/cpu/words-inl.h"
// clang-format on

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace halfstep::kernels::HWY_NAMESPACE {

static_assert(kBlock <= kMaxBlock);

int64_t adamw(const AdamwFormat& format, const AdamwRun& run) {
  const auto index = template_index(format);
  if (!index) {
    PathCounters::add(path_counters.adamw_tile, run.n);
    return adamw_by_tiles(format, run);
  }
  PathCounters::add(path_counters.adamw_template, run.n);
  const bool split = format.master == MasterMode::kSplit;
  return adamw_in_blocks(format, run, kBlock,
                         split ? split_master_blocks(*index) : fp32_master_blocks(*index));
}

void convert(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype, int64_t n,
             Rounding rounding, const NoiseRun& noise) {
  PathCounters::add(path_counters.vector_op, n);
  if (dst_dtype == Dtype::kF32) {
    decode(static_cast<float*>(dst), src, src_dtype, n);
  } else {
    encode(dst, dst_dtype, static_cast<const float*>(src), n, rounding, noise);
  }
}

// Tiles split and join too, and are counted as AdamW elements.
int64_t counted_split(uint16_t* weight, int16_t* remainder, const float* master, int64_t n) {
  PathCounters::add(path_counters.vector_op, n);
  return split(weight, remainder, master, n);
}

void counted_join(float* master, const uint16_t* weight, const int16_t* remainder, int64_t n) {
  PathCounters::add(path_counters.vector_op, n);
  join(master, weight, remainder, n);
}

const KernelTable& table(std::string_view name) {
  static const KernelTable kernels = {
      .name = name,
      .adamw = adamw,
      .convert = convert,
      .accumulate = accumulate,
      .sum_squares_run = sum_squares_run,
      .sum_ranks = sum_ranks,
      .split = counted_split,
      .join = counted_join,
      .init_normal = reference_table().init_normal,  // runs once, at start
  };
  return kernels;
}

}  // namespace halfstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#if HWY_ONCE
namespace halfstep::kernels {

std::vector<SimdImplementation> simd_implementations() {
  [[maybe_unused]] const int64_t supported = hwy::SupportedTargets();
  std::vector<SimdImplementation> list;
#if HWY_TARGETS & HWY_AVX3
  list.push_back({&N_AVX3::table("avx512"), (supported & HWY_AVX3) != 0, "AVX-512 F, BW, DQ, VL"});
#endif
#if HWY_TARGETS & HWY_AVX2
  list.push_back({&N_AVX2::table("avx2"), (supported & HWY_AVX2) != 0, "AVX2, BMI2, FMA, F16C"});
#endif
#if HWY_TARGETS & HWY_SSE4
  list.push_back({&N_SSE4::table("sse4"), (supported & HWY_SSE4) != 0, "SSE4.2, AES, PCLMULQDQ"});
#endif
  return list;
}

}  // namespace halfstep::kernels
#endif  // HWY_ONCE
