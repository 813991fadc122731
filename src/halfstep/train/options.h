// Every setting of a training run, as one plain struct without torch. flags.h fills it from the
// command line and --config, check_options.h refuses what contradicts itself or is not implemented;
// what remains is read by everything below and never written again.
// An empty optional or string means "not given".
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "halfstep/core/dtype.h"
#include "halfstep/data/example.h"

namespace halfstep::train {

enum class DecayStyle : uint8_t { kConstant, kLinear, kCosine, kWsd };
enum class WsdDecayStyle : uint8_t { kExponential, kLinear, kCosine, kMinusSqrt };
// --ddp-bucket-size: a plain number counts parameters, as in Megatron; with a unit, bytes of
// gradient.
struct BucketSize {
  int64_t value = int64_t{32} << 20;
  bool bytes = true;
  friend bool operator==(const BucketSize&, const BucketSize&) = default;
};
enum class MatmulPrecision : uint8_t { kAuto, kBF16, kF32 };
// Whose hyper-parameters a resumed run takes where the command line says another one.
enum class ResumeHparams : uint8_t { kCli, kCheckpoint };
using data::LongExamples;

// Of --num-threads: many more threads than CPUs take minutes for a step that takes a second.
inline int64_t max_threads() {
  return std::max<int64_t>(256, 8 * int64_t{std::thread::hardware_concurrency()});
}

struct Options {
  // Model: a Hugging Face folder, or Megatron's dimensions.
  std::string load_hf;
  // Not a flag: the model of the checkpoint in --load, as a config.json.
  std::string checkpoint_model;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;
  int64_t num_attention_heads = 0;
  bool group_query_attention = false;
  int64_t num_query_groups = 0;
  int64_t kv_channels = 0;  // head dimension; 0: hidden_size / num_attention_heads
  bool qk_layernorm = false;
  bool add_qkv_bias = false;
  double rotary_base = 10000;
  double norm_epsilon = 1e-6;
  int64_t max_position_embeddings = 0;  // 0: seq_length
  int64_t padded_vocab_size = 0;        // 0: the tokenizer's
  int64_t make_vocab_size_divisible_by = 1;
  bool untie_embeddings_and_output_weights = false;
  double init_method_std = 0.02;

  // Data.
  std::vector<std::string> data_path;  // .bin/.idx prefixes, each possibly after its weight
  std::vector<std::string> data;       // text or .jsonl, or @LIST: a file with one path a line
  std::string tokenizer;               // "byte" or a Hugging Face folder
  std::string split = "969,30,1";
  int64_t seq_length = 0;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  // Of examples (.jsonl) only.
  bool no_packing = false;
  LongExamples long_examples = LongExamples::kRefuse;

  // Run.
  int64_t micro_batch_size = 0;
  int64_t global_batch_size = 0;  // 0: micro_batch_size
  int64_t train_iters = 0;
  int64_t seed = 1234;
  int64_t num_threads = 0;  // 0: what this process may use
  MatmulPrecision matmul_precision = MatmulPrecision::kAuto;
  double exit_duration_in_mins = 0;  // 0: no limit
  int64_t eval_interval = 1000;      // also at the end of the run
  int64_t eval_iters = 100;          // at most one pass over the split; 0: no evaluation
  int64_t log_interval = 10;
  std::string log_dir;  // empty: save
  bool log_per_layer = false;
  bool log_samples = false;
  bool quiet = false;
  bool check_config = false;

  // Learning rate.
  double lr = 0;
  double min_lr = 0;
  DecayStyle lr_decay_style = DecayStyle::kLinear;
  int64_t lr_decay_iters = 0;  // 0: train_iters
  int64_t lr_wsd_decay_iters = 0;
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::kExponential;
  int64_t lr_warmup_iters = 0;
  double lr_warmup_fraction = 0;

  // Optimizer.
  double weight_decay = 0.01;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double clip_grad = 1.0;
  int64_t max_skipped_steps = 10;
  bool bf16 = false;
  bool o2_optimizer = false;
  bool o2_gradient = false;
  bool no_gradient_accumulation_fusion = false;
  std::optional<Dtype> exp_avg_dtype;      // empty: bf16 with o2_optimizer, else fp32
  std::optional<Dtype> exp_avg_sq_dtype;   // likewise
  std::optional<Rounding> state_rounding;  // empty: auto
  bool allow_stalling_rounding = false;
  std::optional<Rounding> grad_accumulation_rounding;  // empty: auto
  std::string fp32_params;                             // regular expression over names
  std::optional<MasterMode> master;  // empty: fp32 with bf16 weights, none with fp32 weights
  bool reuse_fp32_param = false;

  // Ranks.
  bool use_distributed_optimizer = false;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  BucketSize ddp_bucket_size;
  std::optional<Dtype> grad_wire_dtype;  // empty: the accumulation's
  int64_t check_replicas = 0;            // 0: at start only
  double distributed_timeout = 600;      // seconds, as the next one
  double heartbeat_timeout = 20;
  // Not a flag: ranks that share the work, from the launcher.
  int64_t data_parallel_size = 1;

  // Checkpoints.
  std::string save;
  std::string load;
  int64_t save_interval = 0;  // 0: only at the end
  bool async_save = false;
  int64_t keep_last = 0;      // 0: all
  int64_t keep_every = 0;     // steps that are a multiple stay for ever
  bool no_load_optim = false;
  bool no_load_rng = false;
  ResumeHparams resume_hparams = ResumeHparams::kCli;
  bool allow_data_change = false;
  bool finetune = false;
  bool convert_state = false;
  bool allow_lossy_master = false;

  // Names of the flags that were given, even if with the default's value: one that would have no
  // effect is refused.
  std::set<std::string, std::less<>> given;

  // Not a flag: values of the command line, by flag, that gave way to those of the checkpoint in
  // --load.
  std::map<std::string, std::string, std::less<>> overruled;

  bool is_given(std::string_view flag) const { return given.contains(flag); }
  // Of one rank and step.
  int64_t num_micro_batches() const {
    return global_batch_size / (micro_batch_size * data_parallel_size);
  }
  Dtype wire_dtype() const { return grad_wire_dtype.value_or(gradient_dtype()); }
  int64_t ddp_bucket_bytes() const {
    return ddp_bucket_size.value * (ddp_bucket_size.bytes ? 1 : dtype_bytes(gradient_dtype()));
  }
  Dtype weight_dtype() const { return bf16 ? Dtype::kBF16 : Dtype::kF32; }
  Dtype gradient_dtype() const { return o2_gradient ? Dtype::kBF16 : Dtype::kF32; }
  Dtype state_default() const { return o2_optimizer ? Dtype::kBF16 : Dtype::kF32; }
  Dtype exp_avg_storage() const { return exp_avg_dtype.value_or(state_default()); }
  Dtype exp_avg_sq_storage() const { return exp_avg_sq_dtype.value_or(state_default()); }
  MasterMode master_mode() const {
    if (reuse_fp32_param) return MasterMode::kSplit;
    return master.value_or(bf16 ? MasterMode::kFp32 : MasterMode::kNone);
  }
};

}  // namespace halfstep::train
