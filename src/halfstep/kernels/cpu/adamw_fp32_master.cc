// The AdamW templates with fp32 master. A file per master mode, so that they compile in parallel.
#include <array>
#include <utility>

#include "halfstep/kernels/cpu/adamw_templates.h"
#include "halfstep/kernels/cpu/simd_kernels.h"
#include "halfstep/kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "halfstep/kernels/cpu/adamw_fp32_master.cc"
// foreach_target.h has to come first.
// clang-format off
#include "hwy/foreach_target.h"
#include "halfstep/kernels/cpu/adamw_template-inl.h"
// clang-format on

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace halfstep::kernels::HWY_NAMESPACE {

AdamwBlocks fp32_master_blocks(int template_index) {
  static constexpr auto kBlocks = []<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    return std::array<AdamwBlocks, sizeof...(kIndex)>{
        adamw_blocks<template_format(MasterMode::kFp32, kIndex)>...};
  }
  (std::make_integer_sequence<int, kTemplatesPerMaster>());
  return kBlocks[static_cast<size_t>(template_index)];
}

}  // namespace halfstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR
