// Reduces the gradients of data-parallel ranks, bucket by bucket (docs/numerics.md §7,
// docs/distributed.md): an all-to-all brings every rank's part of the own shard here, in the dtype
// of the wire; they are added in FP32 in rank order, and the FP32 shard is left in the bucket's own
// storage, whose BF16 or FP32 contents are on the wire by then and no longer needed. So the sum is
// rounded once, and exact reduced gradients cost no memory but receive buffers for the buckets in
// flight.
//
// With overlap, a bucket leaves as soon as the last of its gradients is complete in the step's last
// micro-batch, while backward goes on; else all leave at the end. Buckets leave in one order on all
// ranks (from the last parameters to the first, as backward completes them), whatever parameters a
// rank has used. The bits of the result depend neither on overlap nor on the bucket size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "halfstep/comm/communicator.h"
#include "halfstep/optim/arenas.h"
#include "halfstep/optim/gradient_buffer.h"

namespace halfstep::dist {

struct ReducerOptions {
  bool overlap = false;   // --overlap-grad-reduce
  int64_t in_flight = 2;  // buckets on the wire at once: so many receive buffers
  // Fill memory that holds nothing any more with NaN, so that whoever reads it sees that.
#ifdef HALFSTEP_DEBUG
  bool poison = true;
#else
  bool poison = false;
#endif
};

class GradientReducer final : public optim::GradientListener {
 public:
  // Allocates the receive buffers: scratch_bytes(), as layout plans them. Everything given must
  // outlive this object; `ranks` is the group of the arenas' layout, of any size.
  GradientReducer(optim::Arenas& arenas, optim::GradientBuffer& gradients,
                  comm::Communicator& ranks, const ReducerOptions& options);
  ~GradientReducer() override;
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Before the backward of the step's last micro-batch: from now on a complete gradient is final.
  void begin_last_micro_batch();
  // After it: zeroes what had no contribution, sends what has not been sent, waits, and leaves the
  // reduced gradients where Arenas::reduced_gradient says. Throws CommError; gradients are undefined
  // then, everything else is untouched.
  void finish();

  bool overlaps() const { return options_.overlap; }
  // Measured bytes of the buffers.
  int64_t scratch_bytes() const { return scratch_bytes_; }
  // Of the last step: how long finish() waited for the wire (the part that was not hidden), and how
  // long the sums took.
  double wait_ms() const { return wait_ms_; }
  double sum_ms() const { return sum_ms_; }

 private:
  struct Flight {
    int64_t bucket = 0;
    int64_t buffer = 0;
    comm::Work work;
  };

  void gradient_complete(int64_t parameter) override;
  // Sends the buckets whose turn it is, up to the first that is not complete (`all`: every one).
  void send_ready(bool all);
  void send(int64_t bucket);
  // Waits for the oldest flight and adds up what it brought.
  void land();
  void poison(std::span<std::byte> memory) const;
  void zero_padding(const layout::Bucket& bucket);
  std::byte* storage(const layout::Bucket& bucket) const;

  optim::Arenas& arenas_;
  optim::GradientBuffer& gradients_;
  comm::Communicator& ranks_;
  ReducerOptions options_;
  std::vector<at::Tensor> receive_, send_;     // by buffer
  std::vector<int64_t> free_;                  // buffers
  std::vector<const void*> contributions_;     // of a sum, by rank
  std::vector<int64_t> incomplete_;            // by bucket: parameters still to come
  std::deque<Flight> flights_;
  int64_t next_ = -1;  // the bucket whose turn it is to be sent
  bool armed_ = false;
  int64_t scratch_bytes_ = 0;
  double wait_ms_ = 0, sum_ms_ = 0;
};

}  // namespace halfstep::dist
