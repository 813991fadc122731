// Samples for pre-training: windows over a stream of documents, shuffled, of one dataset or of a
// blend of several. Corner cases: fewer tokens than one sample is an InputError; the last partial
// window of an epoch is dropped; in a blend every part has epochs of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "halfstep/data/sample_source.h"
#include "halfstep/data/token_dataset.h"

namespace halfstep::data {

// A document ends where the dataset says so and, with an eod_token, also after each of these.
struct WindowOptions {
  int64_t seq_length = 0;
  int64_t eod_token = -1;             // −1: documents have no end marker
  bool reset_position_ids = false;    // positions start anew in each document
  bool reset_attention_mask = false;  // attention does not cross documents
  bool eod_mask_loss = false;         // the first token of a document is no target
  int64_t vocab_size = 0;             // > 0: a token outside [0, vocab_size) is an InputError
};

// The windows [first_sample, first_sample + num_samples) of a dataset (a split; see split.h), and
// its share of a blend.
struct WindowRange {
  std::shared_ptr<const TokenDataset> data;
  int64_t first_sample = 0, num_samples = 0;
  double weight = 1.0;
};

class WindowSampler final : public SampleSource {
 public:
  // Samples from [first_sample, first_sample + num_samples) of the data's windows (a split), in an
  // order shuffled anew each epoch (shuffle = false keeps file order, for evaluation).
  WindowSampler(std::shared_ptr<const TokenDataset> data, const WindowOptions& options,
                uint64_t seed, bool shuffle, int64_t first_sample, int64_t num_samples);
  // A blend: sources are drawn in proportion to their weights (blend.h).
  WindowSampler(std::vector<WindowRange> sources, const WindowOptions& options, uint64_t seed,
                bool shuffle);

  // Windows of all sources together.
  int64_t samples_per_epoch() const override;

  // Where global sample `index` comes from.
  struct Location {
    int64_t source = 0;
    int64_t window = 0;
  };
  Location locate(int64_t index) const;
  // Its window, counted over the windows of all sources.
  int64_t sample_at(int64_t index) const override;

  // Without reset_attention_mask: one attention segment per row.
  MicroBatch read(int64_t index0, int64_t batch) const override;

  // Of the tokens, splits and weights of all sources, not of the other options.
  uint64_t fingerprint() const override;

 private:
  std::vector<WindowRange> sources_;
  std::vector<int64_t> samples_before_;  // each source
  int64_t num_samples_ = 0;
  std::vector<uint64_t> blend_ratios_;
  WindowOptions options_;
  uint64_t seed_;
  bool shuffle_;
};

// Windows of seq_length + 1 tokens (overlapping by one) in `data`.
int64_t num_windows(const TokenDataset& data, int64_t seq_length);

}  // namespace halfstep::data
