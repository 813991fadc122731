// The arithmetic of docs/numerics.md §2 for one vector of FP32 values: each operation rounded on
// its own, in the document's order, so every lane has the reference's bits (NaN apart).
#if defined(HALFSTEP_KERNELS_CPU_ADAMW_CORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFSTEP_KERNELS_CPU_ADAMW_CORE_INL_H_
#undef HALFSTEP_KERNELS_CPU_ADAMW_CORE_INL_H_
#else
#define HALFSTEP_KERNELS_CPU_ADAMW_CORE_INL_H_
#endif

#include "halfstep/kernels/adamw.h"
#include "halfstep/kernels/cpu/words-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace halfstep::kernels::HWY_NAMESPACE {

class AdamwCore {
 public:
  HWY_INLINE explicit AdamwCore(const AdamwScalars& k)
      : c1_(hn::Set(f32, k.c1)),
        b2_(hn::Set(f32, k.b2)),
        c2_(hn::Set(f32, k.c2)),
        q_(hn::Set(f32, k.q)),
        a_(hn::Set(f32, k.a)),
        r_(hn::Set(f32, k.r)),
        eps_(hn::Set(f32, k.eps)),
        s_(hn::Set(f32, k.s)) {}

  HWY_INLINE void moments(VecF32 stored_grad, VecF32& m, VecF32& v) const {
    const VecF32 g = hn::Mul(s_, stored_grad);
    m = hn::Add(m, hn::Mul(c1_, hn::Sub(g, m)));
    v = hn::Add(hn::Mul(b2_, v), hn::Mul(c2_, hn::Mul(g, g)));
  }
  // amsgrad: u becomes v where v is larger or NaN.
  HWY_INLINE static VecF32 maximum(VecF32 u, VecF32 v) {
    return hn::IfThenElse(hn::Or(hn::Gt(v, u), hn::IsNaN(v)), v, u);
  }
  // m / d, with the root of the second moment (amsgrad: of its maximum).
  HWY_INLINE VecF32 ratio(VecF32 m, VecF32 root) const {
    return hn::Div(m, hn::Add(hn::Mul(root, r_), eps_));
  }
  HWY_INLINE VecF32 updated(VecF32 w, VecF32 ratio) const {
    return hn::Sub(w, hn::Add(hn::Mul(a_, ratio), hn::Mul(q_, w)));
  }

 private:
  VecF32 c1_, b2_, c2_, q_, a_, r_, eps_, s_;
};

}  // namespace halfstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // include guard, once per target
