// Text from a model, token by token, with a key/value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "halfstep/model/model.h"

namespace halfstep::model {

struct SamplingOptions {
  int64_t max_new_tokens = 100;
  double temperature = 0;  // 0: always the likeliest token
  int64_t top_k = 0;       // sample among the k likeliest; 0: among all
  uint64_t seed = 0;
  int64_t stop_token = -1;  // generation ends after this one; −1: none
};

// The choice of one token from its logits: a pure function of (logits, options, index), where
// `index` counts the tokens chosen before. Throws UsageError for a bad option.
int64_t sample_token(std::span<const float> logits, const SamplingOptions& options, int64_t index);

// The continuation of `prompt` (at least one token), without the prompt. `on_token` is called with
// each token as it comes and may be empty. Draws for token i are addressed by (seed, i).
std::vector<int64_t> generate(Model& model, std::span<const int64_t> prompt,
                              const SamplingOptions& options,
                              const std::function<void(int64_t)>& on_token = {});

}  // namespace halfstep::model
