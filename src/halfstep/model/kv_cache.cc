#include "halfstep/model/kv_cache.h"

#include <ATen/ATen.h>

namespace halfstep::model {

KvCache::KvCache(const arch::ModelConfig& config, int64_t tokens, at::ScalarType compute)
    : capacity(tokens) {
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto allocate = [&] {
      return at::empty({capacity, config.num_query_groups, config.head_dim}, compute);
    };
    layers.push_back({.k = allocate(), .v = allocate()});
  }
}

}  // namespace halfstep::model
