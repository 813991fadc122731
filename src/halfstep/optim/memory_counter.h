// Counts the bytes of every CPU tensor: what a report calls "measured". It stands between torch and
// its CPU allocator and adds up the sizes that torch asks for, so the figures are exact and do not
// depend on malloc. Scratch that math libraries allocate for themselves is not a tensor and is not
// seen. Counters may be read and written from any thread; phases are set by the training loop.
#pragma once

#include <cstdint>
#include <string_view>

namespace halfstep::optim {

// What the training loop is doing, for peaks by phase.
enum class Phase : uint8_t { kSetup, kForward, kBackward, kStep };
inline constexpr int kNumPhases = 4;
std::string_view phase_name(Phase phase);

class MemoryCounter {
 public:
  // The counter of this process. The first call puts it in front of torch's CPU allocator, for
  // good; tensors that already exist are not counted. Call it before the first tensor is made.
  static MemoryCounter& instance();

  // Bytes of all tensors alive now.
  int64_t live_bytes() const;
  // Bytes that this thread has allocated, less those that it has freed.
  int64_t thread_bytes() const;
  // Tensor allocations so far.
  int64_t num_allocations() const;

  // From here on peaks belong to `phase` (kSetup at start).
  void begin_phase(Phase phase);
  // The most bytes alive at once, so far, during this phase; 0 if it never began.
  int64_t peak_bytes(Phase phase) const;
  // The same over all phases.
  int64_t peak_bytes() const;
  // Forgets all peaks; that of the current phase starts again from what is alive now.
  void reset_peaks();

  MemoryCounter(const MemoryCounter&) = delete;
  MemoryCounter& operator=(const MemoryCounter&) = delete;

 private:
  MemoryCounter() = default;
};

}  // namespace halfstep::optim
