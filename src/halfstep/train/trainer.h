// Everything that one rank of a training run owns, in the order in which it is built, and how it is
// built. The loop, the reports and the checkpoints work on it; nothing of a run lives elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "halfstep/arch/model_config.h"
#include "halfstep/checkpoint/async_saver.h"
#include "halfstep/comm/communicator.h"
#include "halfstep/data/sample_source.h"
#include "halfstep/dist/gradient_reducer.h"
#include "halfstep/dist/parameter_gather.h"
#include "halfstep/model/model.h"
#include "halfstep/optim/adamw.h"
#include "halfstep/optim/arenas.h"
#include "halfstep/optim/gradient_buffer.h"
#include "halfstep/train/matmul_precision.h"
#include "halfstep/train/options.h"
#include "halfstep/train/run_log.h"
#include "halfstep/train/schedule.h"
#include "halfstep/train/tokens.h"

namespace halfstep::train {

inline constexpr int64_t kBucketsInFlight = 2;

// Where the run stands; all of it is in a checkpoint.
struct Progress {
  int64_t iteration = 0;         // completed, skipped ones included
  int64_t consumed_samples = 0;  // the next sample's index
  int64_t consumed_tokens = 0;
  int64_t skipped_steps = 0;
  int64_t consecutive_skipped_steps = 0;
};

// Hands the factors of weight gradients to the buffer, which adds their product without rounding it
// to the weight's dtype: straight (gradient accumulation fusion) or through a transient.
class GradientSink final : public model::WeightGradientSink {
 public:
  explicit GradientSink(optim::GradientBuffer& buffer) : buffer_(buffer) {}
  bool add_product(int64_t parameter, int64_t count, const at::Tensor& grad_output,
                   const at::Tensor& input) override {
    return buffer_.add_product(parameter, count, grad_output, input);
  }

 private:
  optim::GradientBuffer& buffer_;
};

struct Trainer {
  explicit Trainer(comm::Communicator& communicator) : ranks(communicator) {}

  comm::Communicator& ranks;
  Options options;
  uint64_t seed = 0;  // the checkpoint's after a resume
  TokenSources tokens;
  arch::ModelConfig config;
  std::unique_ptr<data::SampleSource> training;
  std::unique_ptr<data::SampleSource> validation;  // null: nothing to evaluate
  ComputeChoice compute;
  std::unique_ptr<optim::Arenas> arenas;
  std::unique_ptr<optim::GradientBuffer> gradients;
  std::unique_ptr<optim::AdamW> optimizer;
  std::unique_ptr<dist::GradientReducer> reducer;
  std::unique_ptr<dist::ParameterGather> gather;
  std::unique_ptr<GradientSink> sink;
  bool fused = false;  // gradient accumulation fusion acts
  std::unique_ptr<model::Model> model;
  // With --async-save: where what is being written stands, as measured, and who writes it.
  at::Tensor save_copy;
  int64_t save_copy_bytes = 0;
  std::unique_ptr<checkpoint::AsyncSaver> async_saver;
  Schedule schedule;
  Progress progress;
  bool updating = false;  // the optimizer is at work: weights and state are of two steps
};

// Sets the thread counts, reads data and weights (drawn, from Hugging Face, or a checkpoint) and
// allocates all static memory. `options` come from checked_options. Says on `log` what a resume
// changes.
std::unique_ptr<Trainer> set_up(const Options& options, comm::Communicator& ranks, RunLog& log);

// The model that the options describe or name, if it fits these tokens and the flags given.
arch::ModelConfig make_config(const Options& options, const TokenSources& tokens);

// The layout of these parameters with these flags: what --check-config prints without allocating.
layout::Layout plan_layout(const Options& options, const std::vector<arch::Parameter>& parameters);

// Matrix products of one token, forward and backward: 6 per weight (the output layer's included)
// and 6 · head size · sequence length per layer and head for causal attention.
double flops_per_token(const arch::ModelConfig& config, int64_t seq_length);

}  // namespace halfstep::train
