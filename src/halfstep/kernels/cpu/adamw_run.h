// What every SIMD AdamW kernel does around its inner loop, free of SIMD: cutting a run so that the
// loop sees whole, noise-aligned blocks only, and handing elements over to the reference.
#pragma once

#include <cstdint>

#include "halfstep/kernels/kernel_table.h"

namespace halfstep::kernels {

// Counter word 1 of the noise changes at multiples of this many elements; no loop crosses one.
inline constexpr int64_t kNoiseSpan = int64_t{1} << 35;
// Elements of one Philox block: loops begin at multiples of this.
inline constexpr int64_t kNoiseBlock = 8;
inline constexpr int64_t kMaxBlock = 64;  // the widest target's block of a loop, in elements

// The elements [offset, offset + n) of a run.
AdamwRun part_of(const AdamwFormat& format, const AdamwRun& run, int64_t offset, int64_t n);

// Lets the reference compute the elements [offset, offset + n) of a run; returns what it returns.
int64_t reference_group(const AdamwFormat& format, const AdamwRun& run, int64_t offset, int64_t n);

// Works through a run with `blocks`, which takes runs whose n is a multiple of `block` (≤
// kMaxBlock) and whose first is a multiple of kNoiseBlock. Ragged ends are copied into a padded
// block, go through the same code and are copied back. Returns the sum of what `blocks` returned.
using AdamwBlocks = int64_t (*)(const AdamwFormat& format, const AdamwRun& run);
int64_t adamw_in_blocks(const AdamwFormat& format, const AdamwRun& run, int64_t block,
                        AdamwBlocks blocks);

}  // namespace halfstep::kernels
