// A model that is only read: weights of a checkpoint or of a Hugging Face folder, for eval and
// generate.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "halfstep/arch/model_config.h"
#include "halfstep/model/model.h"
#include "halfstep/train/options.h"

namespace halfstep::train {

struct LoadedModel {
  arch::ModelConfig config;
  std::unique_ptr<model::Model> model;
  std::string tokenizer;   // that of the training run, or the Hugging Face folder itself
  int64_t seq_length = 0;  // of the training run; 0 if unknown
};

struct ModelSource {
  std::string load;     // a checkpoint, or
  std::string load_hf;  // a Hugging Face folder: exactly one of them
  MatmulPrecision matmul_precision = MatmulPrecision::kAuto;
  int64_t num_threads = 0;  // 0: what this process may use
};

// Sets the thread counts and loads. No weight is rounded: BF16 stays BF16, and F32 and F16 of a
// Hugging Face folder become FP32; those are computed in FP32 unless BF16 is asked for. Throws
// UsageError, InputError.
LoadedModel load_model(const ModelSource& source);

void set_threads(int64_t num_threads);

}  // namespace halfstep::train
