// Samples for fine-tuning: a row of whole examples each. Every example is an attention segment of
// its own with positions from 0, and has a loss on its learned tokens only, whatever shares its
// row; what is left of a row is padding, a segment without loss. An example of n tokens takes n − 1
// places, as nothing follows its last token. Which examples share a row is settled once; the order
// of rows is shuffled anew each epoch.
#pragma once

#include <cstdint>
#include <memory>

#include "halfstep/data/example_set.h"
#include "halfstep/data/pack_rows.h"
#include "halfstep/data/sample_source.h"

namespace halfstep::data {

struct ExampleSamplerOptions {
  int64_t seq_length = 0;
  bool packing = true;     // false: one example a row
  int64_t vocab_size = 0;  // > 0: a token outside [0, vocab_size) is an InputError
};

class ExampleSampler final : public SampleSource {
 public:
  // Of the examples [first, first + count) (a split), none of which may be longer than seq_length +
  // 1 tokens. Without `shuffle`: rows in order.
  ExampleSampler(std::shared_ptr<const ExampleSet> examples, const ExampleSamplerOptions& options,
                 uint64_t seed, bool shuffle, int64_t first, int64_t count);

  int64_t samples_per_epoch() const override { return rows_.size(); }
  // The row of a sample.
  int64_t sample_at(int64_t index) const override;
  MicroBatch read(int64_t index0, int64_t batch) const override;
  // Of the examples and of which of them share a row.
  uint64_t fingerprint() const override { return fingerprint_; }

  int64_t num_examples() const { return count_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_targets() const { return num_targets_; }
  // The share of all places in rows that is no padding.
  double fill() const;

 private:
  void append_example(int64_t e, MicroBatch& batch) const;

  std::shared_ptr<const ExampleSet> examples_;
  ExampleSamplerOptions options_;
  uint64_t seed_;
  bool shuffle_;
  int64_t first_, count_;
  Rows rows_;  // of examples counted from first_
  int64_t num_tokens_ = 0, num_targets_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace halfstep::data
