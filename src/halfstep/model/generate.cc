#include "halfstep/model/generate.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/core/philox.h"
#include "halfstep/model/kv_cache.h"

namespace halfstep::model {
namespace {

// A number in [0, 1) with 32 random bits.
double uniform(uint64_t seed, int64_t index) {
  const NoiseStream stream{.seed = seed, .name_hash = fnv1a("generate")};
  const uint64_t high = stream.bits16(2 * index), low = stream.bits16(2 * index + 1);
  return static_cast<double>(high << 16 | low) * 0x1p-32;
}

void check_options(const SamplingOptions& options) {
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    throw UsageError(fmt::format("temperature is {}, expected a finite number, 0 or above",
                                 options.temperature));
  }
  if (options.top_k < 0) {
    throw UsageError(fmt::format("top-k is {}, expected 0 or more", options.top_k));
  }
}

}  // namespace

int64_t sample_token(std::span<const float> logits, const SamplingOptions& options, int64_t index) {
  check_options(options);
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return likeliest - logits.begin();

  std::vector<int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(ids.size())) {
    const auto before = [&](int64_t a, int64_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    };
    std::nth_element(ids.begin(), ids.begin() + options.top_k, ids.end(), before);
    ids.resize(static_cast<size_t>(options.top_k));
    std::sort(ids.begin(), ids.end());
  }
  std::vector<double> cumulative;
  double total = 0;
  for (const int64_t id : ids) {
    total += std::exp((static_cast<double>(logits[id]) - *likeliest) / options.temperature);
    cumulative.push_back(total);
  }
  const double draw = uniform(options.seed, index) * total;
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), draw);
  return ids[std::min(static_cast<size_t>(chosen - cumulative.begin()), ids.size() - 1)];
}

std::vector<int64_t> generate(Model& model, std::span<const int64_t> prompt,
                              const SamplingOptions& options,
                              const std::function<void(int64_t)>& on_token) {
  check_options(options);
  if (prompt.empty()) {
    throw UsageError("generate: the prompt has no tokens", "give at least one character");
  }
  KvCache cache(model.config(), static_cast<int64_t>(prompt.size()) + options.max_new_tokens,
                model.options().compute);
  at::Tensor next = at::empty({static_cast<int64_t>(prompt.size())}, at::kLong);
  std::copy(prompt.begin(), prompt.end(), next.mutable_data_ptr<int64_t>());

  std::vector<int64_t> generated;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const at::Tensor logits = model.next_logits(next, cache);
    const std::span values(logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel()));
    if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) {
      throw InputError(fmt::format("the model's scores of token {} are not finite", i),
                       "its weights are broken: load an earlier checkpoint");
    }
    const int64_t token = sample_token(values, options, i);
    generated.push_back(token);
    if (on_token) on_token(token);
    if (token == options.stop_token) break;
    next = at::full({1}, token, at::kLong);
  }
  return generated;
}

}  // namespace halfstep::model
