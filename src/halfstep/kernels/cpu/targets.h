// The instruction sets that the SIMD kernels are built for. Every .cc of this folder that has SIMD
// code is compiled once per target by hwy/foreach_target.h, after this header; the code of a target
// lives in the namespace HWY_NAMESPACE (N_AVX3, N_AVX2, N_SSE4) and is reached through
// simd_tables.h alone, so no Highway name leaks out of the folder.
#pragma once

// SSSE3 machines take the reference; AVX3_DL adds nothing to AVX3 here.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
