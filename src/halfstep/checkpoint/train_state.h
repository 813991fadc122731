// Everything of a run that is not a tensor, as the manifest keeps it. With the tensors it is the
// complete state of training: random bits and the order of the data are addressed, not drawn, so
// the seed and the consumed samples stand for both.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "halfstep/layout/layout.h"

namespace halfstep::checkpoint {

struct TrainState {
  int64_t iteration = 0;  // completed iterations, skipped ones included
  // The optimizer's step of each parameter: t, but for those named here.
  int64_t t = 0;
  std::map<std::string, int64_t> t_exceptions;
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  int64_t skipped_steps = 0;              // non-finite steps in the whole run
  int64_t consecutive_skipped_steps = 0;  // and those just before this checkpoint
  uint64_t seed = 0;
  uint64_t data_fingerprint = 0;  // 0: no run has begun, so data and seed are still to be chosen
  int torch_threads = 0;
  layout::StorageFormat storage;         // of the common arena
  std::vector<std::string> fp32_params;  // parameters that keep FP32 weights and state
  // Free-form objects, kept as they are.
  nlohmann::json hyperparameters = nlohmann::json::object();
  nlohmann::json model_config = nlohmann::json::object();  // as in Hugging Face's config.json
  nlohmann::json data = nlohmann::json::object();          // e.g. sequence length, paths

  // An imported model (`halfstep convert`) with which no run has begun.
  bool is_fresh() const { return data_fingerprint == 0; }
  int64_t t_of(const std::string& parameter) const {
    const auto it = t_exceptions.find(parameter);
    return it == t_exceptions.end() ? t : it->second;
  }
};

}  // namespace halfstep::checkpoint
