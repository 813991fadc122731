// How many elements took which path of the SIMD kernels, so that tests can show that the path they
// mean to test really ran. Added to once per range, handed_over once per hand-over. Internal to the
// kernels and their tests.
#pragma once

#include <atomic>
#include <cstdint>

namespace halfstep::kernels {

struct PathCounters {
  std::atomic<int64_t> adamw_template{0};  // AdamW elements through a template of their format
  std::atomic<int64_t> adamw_tile{0};      // AdamW elements through tiles
  std::atomic<int64_t> vector_op{0};       // elements of the other operations
  std::atomic<int64_t> handed_over{0};     // of all these, those that the reference computed

  void reset() { adamw_template = adamw_tile = vector_op = handed_over = 0; }
  static void add(std::atomic<int64_t>& counter, int64_t n) {
    counter.fetch_add(n, std::memory_order_relaxed);
  }
};

inline PathCounters path_counters;

}  // namespace halfstep::kernels
