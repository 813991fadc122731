// Philox4x32-10 in 64-bit lanes: one call gives the 16-bit random numbers of kBlock elements, in
// the order of docs/numerics.md §5 and in the word layout of words-inl.h, without a cross-lane
// shuffle.
//
// A 64-bit lane holds one block of 8 elements; MulEven reads the low 32 bits of a lane only, so
// what stands in the high half never matters and high words need no masking. Blocks are assigned to
// lanes such that two in-lane interleaves at the end give memory order: lane 2k has block k of the
// first group, lane 2k + 1 block k of the second.
#if defined(HALFSTEP_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFSTEP_KERNELS_CPU_PHILOX_INL_H_
#undef HALFSTEP_KERNELS_CPU_PHILOX_INL_H_
#else
#define HALFSTEP_KERNELS_CPU_PHILOX_INL_H_
#endif

#include "halfstep/core/philox.h"
#include "halfstep/kernels/cpu/words-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace halfstep::kernels::HWY_NAMESPACE {

class PhiloxLanes {
 public:
  // The random words of a block: `first` of its first group, `second` of its second one.
  struct Words {
    VecU32 first, second;
  };

  // Begins at `element`, a multiple of 8. All blocks asked for share the upper bits of the block
  // number (counter word 1), that is, they do not cross a multiple of 2^35 elements.
  HWY_INLINE PhiloxLanes(const NoiseStream& stream, int64_t element) {
    const uint64_t block = static_cast<uint64_t>(element) / 8;
    const PhiloxCounter counter = stream.counter(block);
    PhiloxKey key = stream.key();
    // Rounds 1 and 2, as far as they do not depend on counter word 0.
    const uint64_t p1 = uint64_t{kM1} * counter[2];
    const uint32_t word0 = static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0];
    after1_word2_ = hn::Set(u64, counter[3] ^ key[1]);
    bump(key);
    const uint64_t p0 = uint64_t{kM0} * word0;
    after2_word0_ = hn::Set(u64, static_cast<uint32_t>(p1) ^ key[0]);
    after2_word2_ = hn::Set(u64, static_cast<uint32_t>(p0 >> 32) ^ key[1]);
    bump(key);
    round3_key0_ = hn::Set(u64, key[0]);
    after3_word2_ = hn::Set(u64, static_cast<uint32_t>(p0) ^ key[1]);
    for (auto& round : keys_) {
      bump(key);
      round[0] = hn::Set(u64, key[0]);
      round[1] = hn::Set(u64, key[1]);
    }
    const VecU64 lane = hn::Iota(u64, 0);
    const VecU64 second_group = hn::And(lane, hn::Set(u64, 1));
    counter0_ = hn::Set(u64, static_cast<uint32_t>(block)) + hn::ShiftRight<1>(lane) +
                hn::IfThenElseZero(hn::Ne(second_group, hn::Zero(u64)), hn::Set(u64, kBlocks / 2));
  }

  // One call in pieces, for loops that fill the latency of its rounds with other work: begin(),
  // rounds<0>(), rounds<1>(), words(). What stands between them has to be independent of it.
  struct State {
    VecU64 word0, word1, word2, word3;
  };

  HWY_INLINE State begin() {
    const VecU64 m0 = hn::Set(u64, kM0), m1 = hn::Set(u64, kM1);
    const VecU64 first = mul(counter0_, m0);
    counter0_ = hn::Add(counter0_, hn::Set(u64, kBlocks));
    const VecU64 second = mul(hn::Xor(high(first), after1_word2_), m1);
    const VecU64 word0 = hn::Xor(high(second), after2_word0_);
    const VecU64 word2 = hn::Xor(first, after2_word2_);
    const VecU64 p0 = mul(word0, m0), p1 = mul(word2, m1);
    return {hn::Xor3(high(p1), second, round3_key0_), p1, hn::Xor(high(p0), after3_word2_), p0};
  }

  template <size_t kPiece>  // 0 or 1
  HWY_INLINE void rounds(State& x) const {
    static_assert(2 * kRoundsPerPiece + 1 == kLateRounds && kPiece < 2);
    const VecU64 m0 = hn::Set(u64, kM0), m1 = hn::Set(u64, kM1);
#pragma GCC unroll 8
    for (size_t r = kPiece * kRoundsPerPiece; r < (kPiece + 1) * kRoundsPerPiece; ++r) {
      const VecU64 p0 = mul(x.word0, m0), p1 = mul(x.word2, m1);
      x.word0 = hn::Xor3(high(p1), x.word1, keys_[r][0]);
      x.word2 = hn::Xor3(high(p0), x.word3, keys_[r][1]);
      x.word1 = p1;
      x.word3 = p0;
    }
    compute_here(x.word0);
    compute_here(x.word2);
  }

  // The last round, which also packs words 0 and 1 of a block into one lane, 2 and 3 into another.
  HWY_INLINE Words words(const State& x) const {
    const VecU64 p0 = mul(x.word0, hn::Set(u64, kM0)), p1 = mul(x.word2, hn::Set(u64, kM1));
    const VecU64 low = hn::Set(u64, 0xFFFFFFFFu);
    const VecU64 words01 = hn::Xor3(swap(p1), hn::And(x.word1, low), keys_[kLateRounds - 1][0]);
    const VecU64 words23 = hn::Xor3(swap(p0), hn::And(x.word3, low), keys_[kLateRounds - 1][1]);
    return {hn::BitCast(u32, hn::InterleaveLower(u64, words01, words23)),
            hn::BitCast(u32, hn::InterleaveUpper(u64, words01, words23))};
  }

  HWY_INLINE Words next() {
    State x = begin();
    rounds<0>(x);
    rounds<1>(x);
    return words(x);
  }

 private:
  static constexpr uint32_t kM0 = 0xD2511F53u, kM1 = 0xCD9E8D57u;
  static constexpr size_t kLateRounds = 7;  // rounds 4 to 10
  static constexpr size_t kRoundsPerPiece = 3;
  static constexpr uint64_t kBlocks = kBlock / 8;

  static void bump(PhiloxKey& key) { key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u}; }
  static HWY_INLINE VecU64 mul(VecU64 a, VecU64 b) {
    return hn::MulEven(hn::BitCast(u32, a), hn::BitCast(u32, b));
  }
  static HWY_INLINE VecU64 high(VecU64 x) { return hn::ShiftRight<32>(x); }
  static HWY_INLINE VecU64 swap(VecU64 x) {
    return hn::BitCast(u64, hn::Shuffle2301(hn::BitCast(u32, x)));
  }

  VecU64 counter0_, after1_word2_, after2_word0_, after2_word2_, round3_key0_, after3_word2_;
  VecU64 keys_[kLateRounds][2];
};

}  // namespace halfstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // include guard, once per target
