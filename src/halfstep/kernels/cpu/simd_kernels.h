// The entry points of one target, declared once per target. Each .cc of this folder defines some of
// them in HWY_NAMESPACE; simd_tables.cc puts them into tables.
#pragma once

#include <span>

#include "halfstep/kernels/cpu/adamw_run.h"
#include "halfstep/kernels/kernel_table.h"

#define HALFSTEP_DECLARE_SIMD_KERNELS(target_namespace)                                    \
  namespace halfstep::kernels::target_namespace {                                          \
  AdamwBlocks split_master_blocks(int template_index); /* of adamw_templates.h */          \
  AdamwBlocks fp32_master_blocks(int template_index);                                      \
  int64_t adamw_by_tiles(const AdamwFormat& format, const AdamwRun& run);                  \
  void decode(float* dst, const void* src, Dtype dtype, int64_t n);                        \
  void encode(void* dst, Dtype dtype, const float* x, int64_t n, Rounding rounding,        \
              const NoiseRun& noise);                                                      \
  void accumulate(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype, int64_t n, \
                  Rounding rounding, const NoiseRun& noise);                               \
  double sum_squares_run(const void* x, Dtype dtype, int64_t n);                           \
  void sum_ranks(float* dst, std::span<const void* const> contributions, Dtype dtype,      \
                 int64_t begin, int64_t n);                                                \
  int64_t split(uint16_t* weight, int16_t* remainder, const float* master, int64_t n);     \
  void join(float* master, const uint16_t* weight, const int16_t* remainder, int64_t n);   \
  }

HALFSTEP_DECLARE_SIMD_KERNELS(N_AVX3)
HALFSTEP_DECLARE_SIMD_KERNELS(N_AVX2)
HALFSTEP_DECLARE_SIMD_KERNELS(N_SSE4)
