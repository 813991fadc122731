// The AdamW step of one format as one loop: load, compute, round and store a group at a time in
// registers. Instantiated for the formats that people run (adamw_templates.h); the others go
// through adamw_tile.cc.
#if defined(HALFSTEP_KERNELS_CPU_ADAMW_TEMPLATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFSTEP_KERNELS_CPU_ADAMW_TEMPLATE_INL_H_
#undef HALFSTEP_KERNELS_CPU_ADAMW_TEMPLATE_INL_H_
#else
#define HALFSTEP_KERNELS_CPU_ADAMW_TEMPLATE_INL_H_
#endif

#include "halfstep/kernels/cpu/adamw_core-inl.h"
#include "halfstep/kernels/cpu/adamw_run.h"
#include "halfstep/kernels/cpu/codec-inl.h"
#include "halfstep/kernels/cpu/noise-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace halfstep::kernels::HWY_NAMESPACE {

// The arrays of a run, as values of the loop: through a reference they would be read again after
// every store, which might have changed them for all that the compiler knows.
struct AdamwArrays {
  HWY_INLINE explicit AdamwArrays(const AdamwRun& run)
      : weight(run.weight),
        master(run.master),
        grad(run.grad),
        exp_avg(run.exp_avg),
        exp_avg_sq(run.exp_avg_sq) {}
  void *weight, *master;
  const void* grad;
  void *exp_avg, *exp_avg_sq;
};

// One group on its way through the step: elements [i, i + kGroup) of a run. The stages are called
// in order; they exist so that the loop can put other work between them.
template <AdamwFormat kFormat>
class AdamwGroup {
 public:
  HWY_INLINE AdamwGroup(AdamwArrays arrays, int64_t i)
      : arrays_(arrays), i_(i), unusual_(hn::Zero(u16)) {}

  HWY_INLINE void moments(const AdamwCore& core) {
    const Pair g = load<kFormat.grad>(arrays_.grad, i_, unusual_);
    m_ = load<kFormat.exp_avg>(arrays_.exp_avg, i_, unusual_);
    v_ = load<kFormat.exp_avg_sq>(arrays_.exp_avg_sq, i_, unusual_);
    core.moments(g.even, m_.even, v_.even);
    core.moments(g.odd, m_.odd, v_.odd);
    root_ = {hn::Sqrt(v_.even), hn::Sqrt(v_.odd)};
    compute_here(root_);
  }
  HWY_INLINE void divide(const AdamwCore& core) {
    ratio_ = {core.ratio(m_.even, root_.even), core.ratio(m_.odd, root_.odd)};
    compute_here(ratio_);
  }
  HWY_INLINE void round_state(VecU32 exp_avg_random, VecU32 exp_avg_sq_random) {
    if constexpr (kFormat.exp_avg != Dtype::kF32) {
      m_codes_ = encode<kFormat.exp_avg, kFormat.exp_avg_rounding, NaN::kSeenElsewhere>(
          m_, exp_avg_random, unusual_);
      compute_here(m_codes_);
    }
    if constexpr (kFormat.exp_avg_sq != Dtype::kF32) {
      // Of a negative one the root is NaN, and so is the weight.
      v_codes_ = encode<kFormat.exp_avg_sq, kFormat.exp_avg_sq_rounding, NaN::kSeenElsewhere,
                        Sign::kNonNegative>(v_, exp_avg_sq_random, unusual_);
      compute_here(v_codes_);
    }
  }
  HWY_INLINE void weight(const AdamwCore& core) {
    w_ = kSplit ? join(load_u16(arrays_.weight, i_), load_u16(arrays_.master, i_))
                : load_f32(arrays_.master, i_);
    w_ = {core.updated(w_.even, ratio_.even), core.updated(w_.odd, ratio_.odd)};
    hn::Vec<TagI16> tie;
    w_codes_ = split(w_, unusual_, tie);
  }
  // Whether anything in the group is unusual (codec-inl.h): then nothing of it may be stored.
  HWY_INLINE VecU16 unusual() const { return unusual_; }
  HWY_INLINE void store() const {
    store_u16(w_codes_.weight, arrays_.weight, i_);
    if constexpr (kSplit) {
      store_u16(w_codes_.remainder, arrays_.master, i_);
    } else {
      store_f32(w_, arrays_.master, i_);
    }
    store_state<kFormat.exp_avg>(m_, m_codes_, arrays_.exp_avg);
    store_state<kFormat.exp_avg_sq>(v_, v_codes_, arrays_.exp_avg_sq);
  }

 private:
  static constexpr bool kSplit = kFormat.master == MasterMode::kSplit;

  template <Dtype kDtype>
  HWY_INLINE void store_state(const Pair& x, VecU16 codes, void* base) const {
    if constexpr (kDtype == Dtype::kF32) {
      store_f32(x, base, i_);
    } else {
      store_u16(codes, base, i_);
    }
  }

  const AdamwArrays arrays_;
  const int64_t i_;
  Pair m_, v_, root_, ratio_, w_;
  VecU16 m_codes_, v_codes_;
  SplitCodes w_codes_;
  VecU16 unusual_;
};

// run.n is a multiple of kBlock and run.first of kNoiseBlock.
//
// A block is two groups side by side, with the rounds of the next block's noise in between: square
// root, division and Philox are long chains, and a processor's window does not reach far enough to
// overlap them if they come one after the other. The order of the stages is measured (Zen 3): what
// rounds the first group fills the time of the square roots, and what rounds the second one that of
// the divisions. More of them between would have to be kept in memory: 16 registers are too few.
template <AdamwFormat kFormat>
int64_t adamw_blocks(const AdamwFormat&, const AdamwRun& run) {
  static_assert(kFormat.weight == Dtype::kBF16 && kFormat.master != MasterMode::kNone &&
                !kFormat.amsgrad);
  const AdamwCore core(run.scalars);
  Noise<kFormat.exp_avg, kFormat.exp_avg_rounding> m_noise(run.noise(NoisePurpose::kExpAvg),
                                                           run.first);
  Noise<kFormat.exp_avg_sq, kFormat.exp_avg_sq_rounding> v_noise(run.noise(NoisePurpose::kExpAvgSq),
                                                                 run.first);
  auto m_state = m_noise.begin();
  auto v_state = v_noise.begin();
  m_noise.template rounds<0>(m_state);
  v_noise.template rounds<0>(v_state);
  m_noise.template rounds<1>(m_state);
  v_noise.template rounds<1>(v_state);
  const AdamwArrays arrays(run);
  const int64_t n = run.n;
  int64_t saturated = 0;
  for (int64_t i = 0; i < n; i += kBlock) {
    prefetch(arrays.weight, 2, i, kBlock);
    prefetch(arrays.master, kFormat.master == MasterMode::kSplit ? 2 : 4, i, kBlock);
    prefetch(arrays.grad, dtype_bytes(kFormat.grad), i, kBlock);
    prefetch(arrays.exp_avg, dtype_bytes(kFormat.exp_avg), i, kBlock);
    prefetch(arrays.exp_avg_sq, dtype_bytes(kFormat.exp_avg_sq), i, kBlock);
    AdamwGroup<kFormat> a(arrays, i), b(arrays, i + kGroup);
    const auto m_random = m_noise.words(m_state);
    const auto v_random = v_noise.words(v_state);
    a.moments(core);
    m_state = m_noise.begin();
    v_state = v_noise.begin();
    b.moments(core);
    a.round_state(m_random.first, v_random.first);
    m_noise.template rounds<0>(m_state);
    v_noise.template rounds<0>(v_state);
    a.divide(core);
    b.divide(core);
    b.round_state(m_random.second, v_random.second);
    m_noise.template rounds<1>(m_state);
    v_noise.template rounds<1>(v_state);
    a.weight(core);
    b.weight(core);
    if (HWY_UNLIKELY(any(hn::Or(a.unusual(), b.unusual())))) {
      saturated += reference_group(kFormat, run, i, kBlock);
    } else {
      a.store();
      b.store();
    }
  }
  return saturated;
}

}  // namespace halfstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // include guard, once per target
