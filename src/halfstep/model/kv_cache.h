// Keys and values of the tokens seen so far, so that each new token costs one token's work.
#pragma once

#include <cstdint>
#include <vector>

#include "halfstep/model/layer.h"

namespace halfstep::model {

struct KvCache {
  // Room for `capacity` tokens, allocated at once, in the dtype of the model's activations.
  KvCache(const arch::ModelConfig& config, int64_t capacity, at::ScalarType compute);

  std::vector<LayerCache> layers;
  int64_t capacity = 0;
  int64_t num_tokens = 0;  // seen so far
};

}  // namespace halfstep::model
