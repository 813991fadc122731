// Where a training run gets its micro-batches from. Complete state of a source: none. Sample
// `index` (0, 1, 2, … over the whole run, epochs included) is a pure function of (data, seed,
// options, index), so resume needs one number, and any cut of the global batch over ranks and
// micro-batches reads the same samples. Every method is const and may be called from any thread.
// Implementations: WindowSampler (a stream of documents), ExampleSampler (fine-tuning).
#pragma once

#include <cstdint>
#include <vector>

namespace halfstep::data {

inline constexpr int64_t kIgnoreTarget = -100;  // a target that has no loss, as in PyTorch

// One micro-batch, row-major [batch, seq_length].
struct MicroBatch {
  int64_t batch = 0, seq_length = 0;
  std::vector<int64_t> tokens, targets, positions;
  // Attention segments as cumulative lengths over the flattened batch (first 0, last batch ·
  // seq_length); a segment never crosses a row.
  std::vector<int64_t> segment_starts;
  int64_t num_targets = 0;  // targets that are not kIgnoreTarget
};

// One without rows yet, for a source to fill: room is reserved, and the first segment starts at 0.
MicroBatch empty_micro_batch(int64_t batch, int64_t seq_length);

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // Different samples; how many of them an epoch reads.
  virtual int64_t samples_per_epoch() const = 0;

  // Which of them global sample `index` is, in [0, samples_per_epoch()).
  virtual int64_t sample_at(int64_t index) const = 0;

  // Samples index0 … index0 + batch − 1 as one micro-batch. Throws InputError for data that cannot
  // be used.
  virtual MicroBatch read(int64_t index0, int64_t batch) const = 0;

  // Identifies the samples in checkpoints, but not their order (the seed).
  virtual uint64_t fingerprint() const = 0;
};

}  // namespace halfstep::data
