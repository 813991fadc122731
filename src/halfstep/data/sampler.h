// From tokens to micro-batches. Complete state of the sampler: none. Sample `index` (0, 1, 2, … over
// the whole run, epochs included) is a pure function of (data, seed, seq_length, index), so resume
// needs one number and any cut of the global batch over ranks and micro-batches reads the same
// samples. Corner cases: fewer tokens than one sample is an InputError; the last partial window of
// an epoch is dropped.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "halfstep/data/token_dataset.h"

namespace halfstep::data {

inline constexpr int64_t kIgnoreTarget = -100;  // a target that has no loss, as in PyTorch

// A permutation of [0, n) as a pure function (a cycle-walking Feistel network keyed by seed and
// epoch): no table, any n ≥ 1.
int64_t permute_index(int64_t index, int64_t n, uint64_t seed, int64_t epoch);

struct PackingOptions {
  int64_t seq_length = 0;
  int64_t eod_token = -1;              // −1: documents have no end marker
  bool reset_position_ids = false;     // positions start anew in each document
  bool reset_attention_mask = false;   // attention does not cross documents
  bool eod_mask_loss = false;          // the target after an end marker has no loss
};

// One micro-batch, row-major [batch, seq_length].
struct MicroBatch {
  int64_t batch = 0, seq_length = 0;
  std::vector<int64_t> tokens, targets, positions;
  // Attention segments as cumulative lengths over the flattened batch (first 0, last batch ·
  // seq_length); a segment never crosses a row. Without reset_attention_mask: one segment per row.
  std::vector<int64_t> segment_starts;
  int64_t num_targets = 0;  // targets that are not kIgnoreTarget
};

class Sampler {
 public:
  // Samples from [first_sample, first_sample + num_samples) of the data's windows (a split), in an
  // order shuffled anew each epoch (shuffle = false keeps file order, for evaluation).
  Sampler(std::shared_ptr<const TokenDataset> data, const PackingOptions& options, uint64_t seed,
          bool shuffle, int64_t first_sample, int64_t num_samples);

  int64_t samples_per_epoch() const;
  // The window that global sample `index` reads.
  int64_t window_of(int64_t index) const;
  // Samples index0 … index0 + batch − 1 as one micro-batch.
  MicroBatch read(int64_t index0, int64_t batch) const;

 private:
  std::shared_ptr<const TokenDataset> data_;
  PackingOptions options_;
  uint64_t seed_;
  bool shuffle_;
  int64_t first_sample_, num_samples_;
};

// Windows of seq_length + 1 tokens (overlapping by one) in `data`.
int64_t num_windows(const TokenDataset& data, int64_t seq_length);

}  // namespace halfstep::data
