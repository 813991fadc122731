// Rounding health (docs/numerics.md §8): what a step would move, against what it should move, on a
// sample of blocks. Always the reference arithmetic: the sample is a 64th of the elements.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "halfstep/core/ue6m10.h"
#include "halfstep/kernels/adamw.h"
#include "halfstep/kernels/chunks.h"
#include "halfstep/kernels/reference_tile.h"
#include "halfstep/kernels/slice_runs.h"

namespace halfstep::kernels {
namespace {

constexpr int64_t kBlock = 8;
constexpr int64_t kBlocksPerSample = 64;

// Address of the block sampled in a run of 64 blocks of a parameter. A fixed stride would always
// meet the same columns of a matrix.
int64_t sampled_block(int64_t run) {
  uint64_t z = static_cast<uint64_t>(run) + 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return run * kBlocksPerSample + static_cast<int64_t>(z >> 58);
}

void add(RoundingHealth::Flow& up, RoundingHealth::Flow& down, float before, float exact,
         float stored) {
  // Elements that are not finite, before or after, say nothing about rounding.
  if (!std::isfinite(before) || !std::isfinite(exact) || !std::isfinite(stored)) return;
  if (exact == before) return;
  RoundingHealth::Flow& flow = exact > before ? up : down;
  flow.moved += double{stored} - double{before};
  flow.exact += double{exact} - double{before};
  ++flow.count;
}

// The smallest value of a format with all its mantissa bits.
float full_precision_from(Dtype dtype) {
  return dtype == Dtype::kUE6M10 ? kUe6m10FullPrecision : 0x1p-126f;
}

// Adds the elements [begin, begin + n) of a run, n ≤ 8: loads them, steps them, stores them into
// scratch and reads them back. What a master holds is what the next step starts from, so that is
// the stored weight here.
void sample(RoundingHealth& health, const AdamwFormat& format, const AdamwRun& run, int64_t begin,
            int64_t n) {
  reference::AdamwTile before, exact, stored;
  reference::load_tile(before, format, run, begin, n);
  std::copy_n(before.w, n, exact.w);
  std::copy_n(before.g, n, exact.g);
  std::copy_n(before.m, n, exact.m);
  std::copy_n(before.v, n, exact.v);
  if (format.amsgrad) std::copy_n(before.u, n, exact.u);
  reference::step_tile(exact, run.scalars, format.amsgrad, n);

  struct Storage {
    alignas(float) std::byte bytes[kBlock * sizeof(float)];
  } weight, master, exp_avg, exp_avg_sq, max_exp_avg_sq;
  AdamwRun scratch = run;
  scratch.weight = weight.bytes;
  scratch.master = master.bytes;
  scratch.exp_avg = exp_avg.bytes;
  scratch.exp_avg_sq = exp_avg_sq.bytes;
  scratch.max_exp_avg_sq = max_exp_avg_sq.bytes;
  scratch.first = run.first + begin;
  scratch.n = n;
  reference::store_tile(exact, format, scratch, 0, n);
  scratch.grad = before.g;
  AdamwFormat scratch_format = format;
  scratch_format.grad = Dtype::kF32;
  reference::load_tile(stored, scratch_format, scratch, 0, n);

  const float full_precision = full_precision_from(format.exp_avg_sq);
  for (int64_t i = 0; i < n; ++i) {
    add(health.weight_up, health.weight_down, before.w[i], exact.w[i], stored.w[i]);
    add(health.exp_avg_sq_up, health.exp_avg_sq_down, before.v[i], exact.v[i], stored.v[i]);
    health.nonzero += exact.v[i] != 0;
    health.small += exact.v[i] != 0 && exact.v[i] < full_precision;
  }
  health.sampled += n;
}

// The sampled blocks of a run, as far as they lie in it.
void sample_run(RoundingHealth& health, const AdamwFormat& format, const AdamwRun& run) {
  constexpr int64_t kElementsPerSample = kBlock * kBlocksPerSample;
  const int64_t end = run.first + run.n;
  for (int64_t i = run.first / kElementsPerSample; i * kElementsPerSample < end; ++i) {
    const int64_t block = sampled_block(i) * kBlock;
    const int64_t from = std::max(block, run.first), to = std::min(block + kBlock, end);
    if (from < to) sample(health, format, run, from - run.first, to - from);
  }
}

double lost(const RoundingHealth::Flow& flow) {
  return flow.exact == 0 ? 0 : 1 - flow.moved / flow.exact;
}

}  // namespace

RoundingHealth& RoundingHealth::operator+=(const RoundingHealth& other) {
  const auto add_flow = [](Flow& to, const Flow& from) {
    to.moved += from.moved;
    to.exact += from.exact;
    to.count += from.count;
  };
  add_flow(weight_up, other.weight_up);
  add_flow(weight_down, other.weight_down);
  add_flow(exp_avg_sq_up, other.exp_avg_sq_up);
  add_flow(exp_avg_sq_down, other.exp_avg_sq_down);
  sampled += other.sampled;
  nonzero += other.nonzero;
  small += other.small;
  return *this;
}

double RoundingHealth::lost_weight() const { return std::max(lost(weight_up), lost(weight_down)); }

double RoundingHealth::lost_exp_avg_sq() const {
  return std::max(lost(exp_avg_sq_up), lost(exp_avg_sq_down));
}

// Chunks go in waves whose results fit on the stack and are added up in order, so that the sums do
// not depend on the threads.
RoundingHealth rounding_health(const AdamwFormat& format, std::span<const AdamwSlice> slices,
                               uint64_t seed, ThreadPool& pool) {
  check_adamw_arguments(format, slices);
  constexpr int64_t kChunksPerWave = 256;
  std::array<RoundingHealth, kChunksPerWave> results;
  RoundingHealth total;
  const int64_t chunks = SliceChunks::count(slices);
  for (int64_t wave = 0; wave < chunks; wave += kChunksPerWave) {
    const int64_t wave_end = std::min(wave + kChunksPerWave, chunks);
    for_each_slice_chunk(
        pool, slices, wave, wave_end, [&](int64_t chunk, const SliceChunks::Piece& piece) {
          RoundingHealth& result = results[static_cast<size_t>(chunk - wave)];
          result = {};
          for_each_run(format, piece, seed,
                       [&](const AdamwRun& run) { sample_run(result, format, run); });
        });
    for (int64_t i = 0; i < wave_end - wave; ++i) total += results[static_cast<size_t>(i)];
  }
  return total;
}

}  // namespace halfstep::kernels
