#include "halfstep/optim/memory_counter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

namespace halfstep::optim {
namespace {

// In front of every allocation stands its size, since a deleter is told only the address. One cache
// line, so that torch's 64-byte alignment stays.
constexpr size_t kHeaderBytes = 64;

std::atomic<int64_t> live{0};
std::atomic<int64_t> allocations{0};
thread_local int64_t live_of_thread = 0;
std::atomic<int> current_phase{static_cast<int>(Phase::kSetup)};
std::array<std::atomic<int64_t>, kNumPhases> peaks{};

void raise(std::atomic<int64_t>& peak, int64_t value) {
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// Immortal, as torch wants its allocators.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_counted, cpu};
    auto* raw = static_cast<char*>(base_->raw_allocate(bytes + kHeaderBytes));
    std::memcpy(raw, &bytes, sizeof bytes);
    allocations.fetch_add(1, std::memory_order_relaxed);
    const auto size = static_cast<int64_t>(bytes);
    live_of_thread += size;
    raise(peaks[current_phase.load(std::memory_order_relaxed)],
          live.fetch_add(size, std::memory_order_relaxed) + size);
    void* data = raw + kHeaderBytes;
    return {data, data, &free_counted, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }

  void copy_data(void* dest, const void* src, size_t bytes) const override {
    default_copy_data(dest, src, bytes);
  }

  static CountingAllocator* instance() {
    static auto* const allocator = new CountingAllocator(c10::GetCPUAllocator());
    return allocator;
  }

 private:
  static void free_counted(void* data) {
    if (data == nullptr) return;
    char* raw = static_cast<char*>(data) - kHeaderBytes;
    size_t bytes = 0;
    std::memcpy(&bytes, raw, sizeof bytes);
    live_of_thread -= static_cast<int64_t>(bytes);
    live.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
    instance()->base_->raw_deallocate(raw);
  }

  c10::Allocator* base_;
};

}  // namespace

std::string_view phase_name(Phase phase) {
  switch (phase) {
    case Phase::kSetup:
      return "setup";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kStep:
      return "step";
  }
  return "?";
}

MemoryCounter& MemoryCounter::instance() {
  static MemoryCounter* const counter = [] {
    c10::SetCPUAllocator(CountingAllocator::instance());
    return new MemoryCounter;
  }();
  return *counter;
}

int64_t MemoryCounter::live_bytes() const { return live.load(); }

int64_t MemoryCounter::thread_bytes() const { return live_of_thread; }

int64_t MemoryCounter::num_allocations() const { return allocations.load(); }

void MemoryCounter::begin_phase(Phase phase) {
  current_phase.store(static_cast<int>(phase));
  raise(peaks[static_cast<int>(phase)], live.load());
}

int64_t MemoryCounter::peak_bytes(Phase phase) const {
  return peaks[static_cast<int>(phase)].load();
}

int64_t MemoryCounter::peak_bytes() const {
  int64_t most = 0;
  for (const auto& peak : peaks) most = std::max(most, peak.load());
  return most;
}

void MemoryCounter::reset_peaks() {
  for (auto& peak : peaks) peak.store(0);
  raise(peaks[current_phase.load()], live.load());
}

}  // namespace halfstep::optim
