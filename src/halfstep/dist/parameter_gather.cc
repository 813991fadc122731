#include "halfstep/dist/parameter_gather.h"

#include <chrono>

#include "halfstep/core/error.h"
#include "halfstep/core/stopwatch.h"

namespace halfstep::dist {

ParameterGather::ParameterGather(optim::Arenas& arenas, comm::Communicator& ranks, bool overlap)
    : arenas_(arenas), ranks_(ranks), overlap_(overlap) {
  check(arenas.layout().num_ranks() == ranks.size(), "gather: arenas of another number of ranks");
  works_.resize(arenas.layout().buckets.size());
}

void ParameterGather::start() {
  if (ranks_.size() == 1) return;
  for (size_t b = 0; b < works_.size(); ++b) {
    const layout::Bucket& bucket = arenas_.layout().buckets[b];
    const int64_t element = dtype_bytes(arenas_.layout().arenas[bucket.arena].format.weight);
    auto* const base =
        static_cast<std::byte*>(arenas_.base(layout::MemoryClass::kWeight, bucket.arena));
    works_[b] =
        ranks_.all_gather_in_place({base + bucket.offset * element,
                                    static_cast<size_t>(bucket.num_elements * element)});
  }
  if (!overlap_) wait_for_all();
}

void ParameterGather::wait_for(int64_t begin, int64_t end) {
  for (int64_t p = begin; p < end; ++p) wait_for_bucket(arenas_.layout().placement_of(p).bucket);
}

void ParameterGather::wait_for_all() {
  for (size_t b = 0; b < works_.size(); ++b) wait_for_bucket(static_cast<int64_t>(b));
}

void ParameterGather::wait_for_bucket(int64_t bucket) {
  const auto start = std::chrono::steady_clock::now();
  works_[bucket].wait();  // returns at once if it has been waited for
  wait_ms_ += milliseconds_since(start);
}

}  // namespace halfstep::dist
