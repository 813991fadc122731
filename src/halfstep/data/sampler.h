// From tokens to micro-batches. Complete state of the sampler: none. Sample `index` (0, 1, 2, …
// over the whole run, epochs included) is a pure function of (data, seed, seq_length, index), so
// resume needs one number and any cut of the global batch over ranks and micro-batches reads the
// same samples. Every method is const and may be called from any thread. Corner cases: fewer tokens
// than one sample is an InputError; the last partial window of an epoch is dropped; in a blend
// every component has epochs of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "halfstep/data/permutation.h"
#include "halfstep/data/token_dataset.h"

namespace halfstep::data {

inline constexpr int64_t kIgnoreTarget = -100;  // a target that has no loss, as in PyTorch

// A document ends where the dataset says so and, with an eod_token, also after each of these.
struct PackingOptions {
  int64_t seq_length = 0;
  int64_t eod_token = -1;             // −1: documents have no end marker
  bool reset_position_ids = false;    // positions start anew in each document
  bool reset_attention_mask = false;  // attention does not cross documents
  bool eod_mask_loss = false;         // the first token of a document is no target
  int64_t vocab_size = 0;             // > 0: a token outside [0, vocab_size) is an InputError
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

// The windows [first_sample, first_sample + num_samples) of a dataset (a split; see split.h), and
// its share of a blend.
struct SamplerSource {
  std::shared_ptr<const TokenDataset> data;
  int64_t first_sample = 0, num_samples = 0;
  double weight = 1.0;
};

class Sampler {
 public:
  // Samples from [first_sample, first_sample + num_samples) of the data's windows (a split), in an
  // order shuffled anew each epoch (shuffle = false keeps file order, for evaluation).
  Sampler(std::shared_ptr<const TokenDataset> data, const PackingOptions& options, uint64_t seed,
          bool shuffle, int64_t first_sample, int64_t num_samples);
  // A blend: sources are drawn in proportion to their weights (blend.h).
  Sampler(std::vector<SamplerSource> sources, const PackingOptions& options, uint64_t seed,
          bool shuffle);

  // Windows of all sources together.
  int64_t samples_per_epoch() const;

  // Where global sample `index` comes from.
  struct Location {
    int64_t source = 0;
    int64_t window = 0;
  };
  Location locate(int64_t index) const;
  // The window that global sample `index` reads.
  int64_t window_of(int64_t index) const { return locate(index).window; }

  // Samples index0 … index0 + batch − 1 as one micro-batch.
  MicroBatch read(int64_t index0, int64_t batch) const;

  // Identifies what the samples are taken from: the tokens, splits and weights of all sources. Not
  // the order (seed) and not the packing.
  uint64_t fingerprint() const;

 private:
  std::vector<SamplerSource> sources_;
  std::vector<uint64_t> blend_ratios_;
  PackingOptions options_;
  uint64_t seed_;
  bool shuffle_;
};

// Windows of seq_length + 1 tokens (overlapping by one) in `data`.
int64_t num_windows(const TokenDataset& data, int64_t seq_length);

}  // namespace halfstep::data
