#include "halfstep/kernels/cpu/adamw_run.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "halfstep/kernels/cpu/path_counters.h"

namespace halfstep::kernels {
namespace {

// The arrays of a run as (pointer, bytes per element); a null pointer where there is none.
struct Array {
  char* data;
  int64_t bytes;
  bool written;
};
constexpr size_t kNumArrays = 6, kExpAvgSq = 4;

std::array<Array, kNumArrays> arrays_of(const AdamwFormat& format, const AdamwRun& run) {
  const auto at = [](const void* p) { return static_cast<char*>(const_cast<void*>(p)); };
  return {{{at(run.weight), dtype_bytes(format.weight), true},
           {at(run.master), format.master == MasterMode::kSplit ? 2 : 4, true},
           {at(run.grad), dtype_bytes(format.grad), false},
           {at(run.exp_avg), dtype_bytes(format.exp_avg), true},
           {at(run.exp_avg_sq), dtype_bytes(format.exp_avg_sq), true},
           {at(run.max_exp_avg_sq), dtype_bytes(format.exp_avg_sq), true}}};
}

AdamwRun with_arrays(const AdamwRun& run, const std::array<char*, kNumArrays>& data) {
  AdamwRun moved = run;
  moved.weight = data[0];
  moved.master = data[1];
  moved.grad = data[2];
  moved.exp_avg = data[3];
  moved.exp_avg_sq = data[4];
  moved.max_exp_avg_sq = data[5];
  return moved;
}

// Up to a block of elements, which begin `lead` elements after a multiple of kNoiseBlock. The
// padding is zero, an ordinary value in every format, and 0x3F3F… as exp_avg_sq, an ordinary value
// that is not zero: with it the padding's step divides by something even without eps, and so the
// block stays where it is.
int64_t padded_block(const AdamwFormat& format, const AdamwRun& run, int64_t lead, int64_t block,
                     AdamwBlocks blocks) {
  alignas(64) char buffer[kNumArrays][kMaxBlock * sizeof(float)];
  std::memset(buffer, 0, sizeof(buffer));
  std::memset(buffer[kExpAvgSq], 0x3F, sizeof(buffer[kExpAvgSq]));
  const auto arrays = arrays_of(format, run);
  std::array<char*, kNumArrays> data{};
  const auto copy = [&](size_t k, bool back) {
    char* inside = buffer[k] + lead * arrays[k].bytes;
    std::memcpy(back ? arrays[k].data : inside, back ? inside : arrays[k].data,
                static_cast<size_t>(run.n * arrays[k].bytes));
  };
  for (size_t k = 0; k < kNumArrays; ++k) {
    if (!arrays[k].data) continue;
    data[k] = buffer[k];
    copy(k, false);
  }
  AdamwRun padded = with_arrays(run, data);
  padded.first = run.first - lead;
  padded.n = block;
  const int64_t saturated = blocks(format, padded);
  for (size_t k = 0; k < kNumArrays; ++k) {
    if (arrays[k].data && arrays[k].written) copy(k, true);
  }
  return saturated;
}

}  // namespace

AdamwRun part_of(const AdamwFormat& format, const AdamwRun& run, int64_t offset, int64_t n) {
  const auto arrays = arrays_of(format, run);
  std::array<char*, kNumArrays> data{};
  for (size_t k = 0; k < kNumArrays; ++k) {
    if (arrays[k].data) data[k] = arrays[k].data + offset * arrays[k].bytes;
  }
  AdamwRun part = with_arrays(run, data);
  part.first = run.first + offset;
  part.n = n;
  return part;
}

int64_t reference_group(const AdamwFormat& format, const AdamwRun& run, int64_t offset, int64_t n) {
  PathCounters::add(path_counters.handed_over, n);
  return reference_table().adamw(format, part_of(format, run, offset, n));
}

int64_t adamw_in_blocks(const AdamwFormat& format, const AdamwRun& run, int64_t block,
                        AdamwBlocks blocks) {
  int64_t saturated = 0;
  for (int64_t done = 0; done < run.n;) {
    const int64_t first = run.first + done;
    const int64_t left = std::min(run.n - done, kNoiseSpan - first % kNoiseSpan);
    const int64_t lead = first % kNoiseBlock;
    const int64_t whole = lead == 0 ? left / block * block : 0;
    const int64_t n = whole > 0 ? whole : std::min(left, block - lead);
    const AdamwRun part = part_of(format, run, done, n);
    saturated += whole > 0 ? blocks(format, part) : padded_block(format, part, lead, block, blocks);
    done += n;
  }
  return saturated;
}

}  // namespace halfstep::kernels
