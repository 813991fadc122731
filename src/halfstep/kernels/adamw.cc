// The driver of the AdamW step: checks, threads and slices. The arithmetic is in the kernel tables.
#include "halfstep/kernels/adamw.h"

#include <atomic>

#include "halfstep/kernels/chunks.h"
#include "halfstep/kernels/kernel_table.h"
#include "halfstep/kernels/slice_runs.h"

namespace halfstep::kernels {

int64_t adamw_step(const AdamwFormat& format, std::span<const AdamwSlice> slices, uint64_t seed,
                   ThreadPool& pool) {
  check_adamw_arguments(format, slices);
  const KernelTable& table = current_table();
  std::atomic<int64_t> saturated{0};
  for_each_slice_chunk(
      pool, slices, 0, SliceChunks::count(slices), [&](int64_t, const SliceChunks::Piece& piece) {
        int64_t in_piece = 0;
        for_each_run(format, piece, seed,
                     [&](const AdamwRun& run) { in_piece += table.adamw(format, run); });
        if (in_piece) saturated.fetch_add(in_piece, std::memory_order_relaxed);
      });
  return saturated.load();
}

}  // namespace halfstep::kernels
