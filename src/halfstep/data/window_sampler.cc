#include "halfstep/data/window_sampler.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/data/blend.h"
#include "halfstep/data/permutation.h"

namespace halfstep::data {
namespace {

// Sources with equal sizes must not be read in the same order.
uint64_t source_seed(uint64_t seed, int64_t source) {
  return seed + static_cast<uint64_t>(source) * 0x9E3779B97F4A7C15ull;
}

void check_source(const WindowRange& source, int64_t seq_length) {
  check(source.data != nullptr, "WindowSampler: no data");
  const int64_t windows = num_windows(*source.data, seq_length);
  if (windows == 0) {
    throw InputError(
        fmt::format("{}: {} tokens, expected at least {} for one sample of --seq-length {}",
                    source.data->name(), source.data->num_tokens(), seq_length + 1, seq_length),
        "give more data or a smaller --seq-length");
  }
  if (source.num_samples < 1) {
    throw InputError(
        fmt::format("{}: no samples in this split of {} windows", source.data->name(), windows),
        "give more data, a smaller --seq-length or another --split");
  }
  check(source.first_sample >= 0 && source.num_samples <= windows - source.first_sample,
        "WindowSampler: samples outside the data");
}

// Appends one row: seq_length tokens from window `window` and the token after each as its target.
class RowPacker {
 public:
  RowPacker(const WindowOptions& options, MicroBatch& batch)
      : options_(options), batch_(batch), window_tokens_(options.seq_length + 1) {}

  void append(const TokenDataset& data, int64_t window) {
    const int64_t length = options_.seq_length;
    const int64_t first = window * length;
    data.read(first, window_tokens_);
    if (options_.vocab_size > 0) check_vocabulary(data, first);
    find_document_starts(data, first);

    const int64_t row_start = static_cast<int64_t>(batch_.tokens.size());
    batch_.tokens.insert(batch_.tokens.end(), window_tokens_.begin(), window_tokens_.end() - 1);
    batch_.targets.insert(batch_.targets.end(), window_tokens_.begin() + 1, window_tokens_.end());
    for (int64_t i = 0, position = 0; i < length; ++i, ++position) {
      if (options_.reset_position_ids && starts_document_[i]) position = 0;
      batch_.positions.push_back(position);
      if (options_.reset_attention_mask && i > 0 && starts_document_[i]) {
        batch_.segment_starts.push_back(row_start + i);
      }
      if (options_.eod_mask_loss && starts_document_[i + 1]) {
        batch_.targets[row_start + i] = kIgnoreTarget;
      } else {
        ++batch_.num_targets;
      }
    }
    batch_.segment_starts.push_back(row_start + length);
  }

 private:
  void check_vocabulary(const TokenDataset& data, int64_t first) const {
    for (size_t i = 0; i < window_tokens_.size(); ++i) {
      if (window_tokens_[i] >= 0 && window_tokens_[i] < options_.vocab_size) continue;
      throw InputError(
          fmt::format("{}: token {} at position {}, expected less than the vocabulary size {}",
                      data.name(), window_tokens_[i], first + static_cast<int64_t>(i),
                      options_.vocab_size),
          "the data was made with another tokenizer: see `halfstep data verify PREFIX --vocab-size "
          "N`");
    }
  }

  // Sets starts_document_[i] where token i of the window is the first one of a document.
  void find_document_starts(const TokenDataset& data, int64_t first) {
    starts_document_.assign(window_tokens_.size(), false);
    // The first document that starts at or behind `first`.
    int64_t low = 0, high = data.num_documents();
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (data.document_start(middle) < first) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (int64_t d = low; d < data.num_documents(); ++d) {
      const int64_t offset = data.document_start(d) - first;
      if (offset > options_.seq_length) break;
      starts_document_[offset] = true;
    }
    if (options_.eod_token >= 0) {
      for (int64_t i = 1; i <= options_.seq_length; ++i) {
        if (window_tokens_[i - 1] == options_.eod_token) starts_document_[i] = true;
      }
    }
  }

  const WindowOptions& options_;
  MicroBatch& batch_;
  std::vector<int32_t> window_tokens_;
  std::vector<bool> starts_document_;
};

}  // namespace

int64_t num_windows(const TokenDataset& data, int64_t seq_length) {
  check(seq_length >= 1, "num_windows: seq_length below 1");
  return std::max<int64_t>(0, data.num_tokens() - 1) / seq_length;
}

WindowSampler::WindowSampler(std::shared_ptr<const TokenDataset> data, const WindowOptions& options,
                             uint64_t seed, bool shuffle, int64_t first_sample, int64_t num_samples)
    : WindowSampler(std::vector<WindowRange>{{std::move(data), first_sample, num_samples}}, options,
                    seed, shuffle) {}

WindowSampler::WindowSampler(std::vector<WindowRange> sources, const WindowOptions& options,
                             uint64_t seed, bool shuffle)
    : sources_(std::move(sources)), options_(options), seed_(seed), shuffle_(shuffle) {
  std::vector<double> weights;
  for (const WindowRange& source : sources_) {
    check_source(source, options_.seq_length);
    weights.push_back(source.weight);
    samples_before_.push_back(num_samples_);
    num_samples_ += source.num_samples;
  }
  blend_ratios_ = blend_ratios(weights);
}

int64_t WindowSampler::samples_per_epoch() const { return num_samples_; }

WindowSampler::Location WindowSampler::locate(int64_t index) const {
  check(index >= 0, "WindowSampler: negative sample index");
  const BlendLocation blend = blend_locate(blend_ratios_, index);
  const WindowRange& source = sources_[blend.source];
  const int64_t epoch = blend.index / source.num_samples;
  int64_t sample = blend.index % source.num_samples;
  if (shuffle_) {
    sample = permute_index(sample, source.num_samples, source_seed(seed_, blend.source), epoch);
  }
  return {blend.source, source.first_sample + sample};
}

int64_t WindowSampler::sample_at(int64_t index) const {
  const Location location = locate(index);
  return samples_before_[location.source] + location.window -
         sources_[location.source].first_sample;
}

MicroBatch WindowSampler::read(int64_t index0, int64_t batch) const {
  MicroBatch result = empty_micro_batch(batch, options_.seq_length);
  RowPacker packer(options_, result);
  for (int64_t i = 0; i < batch; ++i) {
    const Location location = locate(index0 + i);
    packer.append(*sources_[location.source].data, location.window);
  }
  return result;
}

uint64_t WindowSampler::fingerprint() const {
  uint64_t hash = fnv1a("halfstep samples");
  for (size_t k = 0; k < sources_.size(); ++k) {
    const WindowRange& source = sources_[k];
    hash = fnv1a(fmt::format("{} {} {} {};", source.data->fingerprint(), source.first_sample,
                             source.num_samples, blend_ratios_[k]),
                 hash);
  }
  return hash;
}

}  // namespace halfstep::data
