#include "halfstep/dist/gradient_reducer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "halfstep/core/error.h"
#include "halfstep/core/stopwatch.h"
#include "halfstep/kernels/vector_ops.h"
#include "halfstep/optim/memory_counter.h"

namespace halfstep::dist {
namespace {

using layout::MemoryClass;

std::span<std::byte> bytes_of(const at::Tensor& tensor, int64_t bytes) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(bytes)};
}

}  // namespace

GradientReducer::GradientReducer(optim::Arenas& arenas, optim::GradientBuffer& gradients,
                                 comm::Communicator& ranks, const ReducerOptions& options)
    : arenas_(arenas), gradients_(gradients), ranks_(ranks), options_(options) {
  const layout::Layout& layout = arenas.layout();
  check(layout.num_ranks() == ranks.size(), "reducer: arenas of another number of ranks");
  check(options.in_flight >= 1, "reducer: no bucket may be in flight");
  incomplete_.resize(layout.buckets.size());
  contributions_.resize(ranks.size());

  const auto& counter = optim::MemoryCounter::instance();
  const int64_t before = counter.thread_bytes();
  const layout::ReduceBuffers buffers = layout.reduce_buffers(options.in_flight);
  const auto allocate = [&](int64_t bytes) {
    return at::empty({bytes}, at::dtype(at::kByte).device(arenas.device()));
  };
  for (int64_t i = 0; i < buffers.count; ++i) {
    receive_.push_back(allocate(buffers.receive_bytes));
    send_.push_back(allocate(buffers.send_bytes));
    free_.push_back(i);
  }
  scratch_bytes_ = counter.thread_bytes() - before;
  if (scratch_bytes_ != buffers.bytes()) {
    throw InternalError(fmt::format("reduction scratch took {} bytes, planned {}", scratch_bytes_,
                                    buffers.bytes()));
  }
  if (ranks.size() > 1 && options.overlap) gradients.set_listener(this);
}

GradientReducer::~GradientReducer() { gradients_.set_listener(nullptr); }

void GradientReducer::begin_last_micro_batch() {
  const std::vector<layout::Bucket>& buckets = arenas_.layout().buckets;
  armed_ = true;
  next_ = std::ssize(buckets) - 1;
  for (size_t b = 0; b < buckets.size(); ++b) incomplete_[b] = buckets[b].num_parameters();
  wait_ms_ = sum_ms_ = 0;
}

void GradientReducer::gradient_complete(int64_t parameter) {
  if (!armed_) return;
  --incomplete_[arenas_.layout().placement_of(parameter).bucket];
  send_ready(/*all=*/false);
}

void GradientReducer::finish() {
  gradients_.finish_step();
  if (ranks_.size() == 1) return;
  check(armed_, "reducer: finish without begin_last_micro_batch");
  send_ready(/*all=*/true);
  while (!flights_.empty()) land();
  armed_ = false;
}

void GradientReducer::send_ready(bool all) {
  for (; next_ >= 0 && (all || incomplete_[next_] == 0); --next_) {
    if (free_.empty()) land();
    send(next_);
  }
  while (!flights_.empty() && flights_.front().work.done()) land();
}

void GradientReducer::send(int64_t index) {
  const layout::Layout& layout = arenas_.layout();
  const layout::Bucket& bucket = layout.buckets[index];
  zero_padding(bucket);
  const int64_t buffer = free_.back();
  free_.pop_back();
  const int64_t bytes = layout.wire_bytes(bucket);
  std::byte* source = storage(bucket);
  if (layout.wire_is_copy(bucket)) {
    kernels::convert(send_[buffer].data_ptr(), layout.arenas[bucket.arena].wire, source,
                     layout.arenas[bucket.arena].format.gradient, bucket.num_elements,
                     Rounding::kNearest, {});
    source = bytes_of(send_[buffer], bytes).data();
  }
  const std::span<std::byte> receive = bytes_of(receive_[buffer], bytes);
  poison(receive);
  flights_.push_back({.bucket = index,
                      .buffer = buffer,
                      .work = ranks_.all_to_all({source, receive.size()}, receive)});
}

void GradientReducer::land() {
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  const auto waiting = std::chrono::steady_clock::now();
  flight.work.wait();
  wait_ms_ += milliseconds_since(waiting);
  const auto summing = std::chrono::steady_clock::now();
  const layout::Layout& layout = arenas_.layout();
  const layout::Bucket& bucket = layout.buckets[flight.bucket];
  const layout::Arena& arena = layout.arenas[bucket.arena];
  std::byte* const target = storage(bucket);
  poison({target, static_cast<size_t>(bucket.num_elements * dtype_bytes(arena.format.gradient))});
  const int64_t part = layout.wire_bytes(bucket) / ranks_.size();
  for (int r = 0; r < ranks_.size(); ++r) {
    contributions_[r] = bytes_of(receive_[flight.buffer], 0).data() + r * part;
  }
  kernels::sum_ranks(reinterpret_cast<float*>(target), contributions_, arena.wire,
                     layout.shard_elements(bucket));
  free_.push_back(flight.buffer);
  sum_ms_ += milliseconds_since(summing);
}

void GradientReducer::poison(std::span<std::byte> memory) const {
  if (options_.poison) std::memset(memory.data(), 0xFF, memory.size());  // NaN in BF16 and FP32
}

// Padding is sent with the rest; what was last written there is a reduced gradient of another step.
void GradientReducer::zero_padding(const layout::Bucket& bucket) {
  const layout::Arena& arena = arenas_.layout().arenas[bucket.arena];
  const int64_t element = dtype_bytes(arena.format.gradient);
  std::byte* const base =
      static_cast<std::byte*>(arenas_.base(MemoryClass::kGradient, bucket.arena));
  for (int64_t i = bucket.first_placement; i < bucket.end_placement; ++i) {
    const layout::Placement& p = arena.placements[i];
    const int64_t begin = p.offset + p.numel;
    const int64_t end = i + 1 < bucket.end_placement ? arena.placements[i + 1].offset
                                                     : bucket.offset + bucket.num_elements;
    std::memset(base + begin * element, 0, (end - begin) * element);
  }
}

std::byte* GradientReducer::storage(const layout::Bucket& bucket) const {
  const int64_t element = dtype_bytes(arenas_.layout().arenas[bucket.arena].format.gradient);
  return static_cast<std::byte*>(arenas_.base(MemoryClass::kGradient, bucket.arena)) +
         bucket.offset * element;
}

}  // namespace halfstep::dist
