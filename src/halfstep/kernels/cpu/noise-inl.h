// The noise that a format and its rounding need: PhiloxLanes, or nothing at no cost.
#if defined(HALFSTEP_KERNELS_CPU_NOISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFSTEP_KERNELS_CPU_NOISE_INL_H_
#undef HALFSTEP_KERNELS_CPU_NOISE_INL_H_
#else
#define HALFSTEP_KERNELS_CPU_NOISE_INL_H_
#endif

#include <type_traits>

#include "halfstep/kernels/cpu/philox-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace halfstep::kernels::HWY_NAMESPACE {

// Stands in for the noise of a state that needs none.
struct NoNoise {
  using Words = PhiloxLanes::Words;
  struct State {};
  HWY_INLINE NoNoise(const NoiseStream&, int64_t) {}
  HWY_INLINE Words next() { return words({}); }
  HWY_INLINE State begin() { return {}; }
  template <size_t kPiece>
  HWY_INLINE void rounds(State&) const {}
  HWY_INLINE Words words(const State&) const { return {hn::Zero(u32), hn::Zero(u32)}; }
};
template <Dtype kDtype, Rounding kRounding>
using Noise = std::conditional_t<kDtype != Dtype::kF32 && kRounding == Rounding::kStochastic,
                                 PhiloxLanes, NoNoise>;

}  // namespace halfstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // include guard, once per target
