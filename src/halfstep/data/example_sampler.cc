#include "halfstep/data/example_sampler.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/data/permutation.h"

namespace halfstep::data {
namespace {

void check_vocabulary(const ExampleSet& examples, int64_t e, int64_t vocab_size) {
  for (const int32_t token : examples.tokens(e)) {
    if (token >= 0 && token < vocab_size) continue;
    throw InputError(fmt::format("{}: token {}, expected less than the vocabulary size {}",
                                 examples.name(e), token, vocab_size),
                     "give the tokenizer of this model: --tokenizer DIR");
  }
}

}  // namespace

ExampleSampler::ExampleSampler(std::shared_ptr<const ExampleSet> examples,
                               const ExampleSamplerOptions& options, uint64_t seed, bool shuffle,
                               int64_t first, int64_t count)
    : examples_(std::move(examples)),
      options_(options),
      seed_(seed),
      shuffle_(shuffle),
      first_(first),
      count_(count) {
  check(first >= 0 && count >= 1 && count <= examples_->size() - first,
        "ExampleSampler: examples outside the data");
  std::vector<int64_t> places;
  for (int64_t e = first; e < first + count; ++e) {
    if (options_.vocab_size > 0) check_vocabulary(*examples_, e, options_.vocab_size);
    places.push_back(examples_->length(e) - 1);
    num_tokens_ += examples_->length(e);
    const auto learned = examples_->learned(e);
    num_targets_ += std::count(learned.begin() + 1, learned.end(), 1);
  }
  rows_ = options_.packing ? pack_rows(places, options_.seq_length) : one_per_row(count);
  fingerprint_ = fnv1a(fmt::format("{} {} {}", examples_->fingerprint(first, count),
                                   options_.seq_length, options_.packing));
}

int64_t ExampleSampler::sample_at(int64_t index) const {
  check(index >= 0, "ExampleSampler: negative sample index");
  const int64_t row = index % rows_.size();
  return shuffle_ ? permute_index(row, rows_.size(), seed_, index / rows_.size()) : row;
}

double ExampleSampler::fill() const {
  return static_cast<double>(num_tokens_ - count_) /
         (static_cast<double>(rows_.size()) * static_cast<double>(options_.seq_length));
}

void ExampleSampler::append_example(int64_t e, MicroBatch& batch) const {
  const auto tokens = examples_->tokens(e);
  const auto learned = examples_->learned(e);
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    batch.tokens.push_back(tokens[i]);
    batch.targets.push_back(learned[i + 1] ? tokens[i + 1] : kIgnoreTarget);
    batch.positions.push_back(static_cast<int64_t>(i));
    batch.num_targets += learned[i + 1];
  }
  batch.segment_starts.push_back(static_cast<int64_t>(batch.tokens.size()));
}

MicroBatch ExampleSampler::read(int64_t index0, int64_t batch) const {
  MicroBatch result = empty_micro_batch(batch, options_.seq_length);
  for (int64_t i = 0; i < batch; ++i) {
    for (const int64_t e : rows_[sample_at(index0 + i)]) append_example(first_ + e, result);
    const int64_t end = (i + 1) * options_.seq_length;
    const int64_t padding = end - static_cast<int64_t>(result.tokens.size());
    check(padding >= 0, "ExampleSampler: an example is longer than a row");
    if (padding == 0) continue;
    for (int64_t position = 0; position < padding; ++position) {
      result.tokens.push_back(0);  // any token: nothing sees it, and it has no loss
      result.targets.push_back(kIgnoreTarget);
      result.positions.push_back(position);
    }
    result.segment_starts.push_back(end);
  }
  return result;
}

}  // namespace halfstep::data
