// The table itself. A line is: group, flag, field, what it means.
#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <utility>

#include "halfstep/arch/limits.h"
#include "halfstep/core/error.h"
#include "halfstep/io/units.h"
#include "halfstep/train/flag_values.h"
#include "halfstep/train/flags.h"

namespace halfstep::train {
namespace {

using Json = nlohmann::ordered_json;
using Values = std::span<const std::string>;

class Table {
 public:
  void group(std::string name) { group_ = std::move(name); }

  void on_off(std::string name, bool Options::*field, std::string help) {
    add({.name = std::move(name),
         .help = std::move(help),
         .arity = Flag::Arity::kSwitch,
         .set = [field](Options& o, Values v) { o.*field = v[0] == "true"; },
         .get = [field](const Options& o) { return Json(o.*field); },
         .reset = to_default(field)});
  }

  // Far above any use, and small enough that products of two settings are 64-bit numbers.
  static constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();

  void integer(std::string name, int64_t Options::*field, std::string help, int64_t min = 0,
               int64_t max = kLargest) {
    add({.name = name,
         .value = "N",
         .help = std::move(help),
         .set = [=](Options& o, Values v) { o.*field = integer_value(name, v[0], min, max); },
         .get = [field](const Options& o) { return Json(o.*field); },
         .reset = to_default(field)});
  }

  // A real number in [min, max], or in (min, max) if `open`.
  void number(std::string name, double Options::*field, std::string help, double min = 0,
              double max = std::numeric_limits<double>::max(), bool open = false) {
    add({.name = name,
         .value = "X",
         .help = std::move(help),
         .set = [=](Options& o, Values v) { o.*field = number_value(name, v[0], min, max, open); },
         .get = [field](const Options& o) { return Json(o.*field); },
         .reset = to_default(field)});
  }

  void text(std::string name, std::string value, std::string Options::*field, std::string help) {
    add({.name = name,
         .value = value,
         .help = std::move(help),
         .set = [=](Options& o, Values v) { o.*field = text_value(name, v[0], value); },
         .get = [field](const Options& o) { return Json(o.*field); },
         .reset = to_default(field),
         .is_text = true});
  }

  void list(std::string name, std::string value, std::vector<std::string> Options::*field,
            std::string help) {
    add({.name = name,
         .value = value,
         .help = std::move(help),
         .arity = Flag::Arity::kMany,
         .set =
             [=](Options& o, Values v) {
               for (const std::string& text : v) text_value(name, text, value);
               (o.*field).assign(v.begin(), v.end());
             },
         .get = [field](const Options& o) { return Json(o.*field); },
         .reset = to_default(field)});
  }

  // One of a few named values. For an optional field, "auto" among the choices is "not given".
  template <typename Field>
  void choice(std::string name, Field Options::*field, Choices<Field> choices, std::string help) {
    add({.name = name,
         .value = "{" + choice_names(choices) + "}",
         .help = std::move(help),
         .set = [=](Options& o, Values v) { o.*field = choice_value(name, v[0], choices); },
         .get = [=](const Options& o) { return choice_json(o.*field, choices); },
         .reset = to_default(field)});
  }

  void bucket_size(std::string name, BucketSize Options::*field, std::string help) {
    add({.name = name,
         .value = "N|SIZE",
         .help = std::move(help),
         .set =
             [=](Options& o, Values v) {
               o.*field = {.value = integer_value(name, v[0], 1, int64_t{1} << 40),
                           .bytes = io::has_byte_unit(v[0])};
             },
         .get =
             [field](const Options& o) {
               const BucketSize& size = o.*field;
               return size.bytes ? Json(fmt::format("{}B", size.value)) : Json(size.value);
             },
         .reset = to_default(field)});
  }

  // A second name of the text setting `first`.
  void also(std::string name, std::string first, std::string value, std::string Options::*field) {
    text(std::move(name), std::move(value), field, "the same as --" + first);
    flags_.back().get = nullptr;
    flags_.back().reset = nullptr;
    flags_.back().second_name_of = std::move(first);
  }

  void nothing_to_do(std::string name, std::string reason,
                     Flag::Arity arity = Flag::Arity::kSwitch) {
    add({.name = std::move(name),
         .value = arity == Flag::Arity::kSwitch ? "" : "V",
         .help = std::move(reason),
         .kind = Flag::Kind::kNothingToDo,
         .arity = arity,
         .set = [](Options&, Values) {}});
  }

  // Accepted with one of these values only: what it asks for is what happens anyway.
  void only(std::string name, std::vector<std::string> accepted, std::string reason,
            std::string refusal) {
    add({.name = name,
         .value = accepted.front(),
         .help = std::move(reason),
         .kind = Flag::Kind::kNothingToDo,
         .set = [=](Options&, Values v) {
           for (const std::string& value : accepted) {
             if (v[0] == value) return;
           }
           throw UsageError(
               fmt::format("--{} {} is not implemented: only {} is", name, v[0], accepted.front()),
               refusal);
         }});
  }

  void refused(std::string name, std::string reason, Flag::Arity arity = Flag::Arity::kOne) {
    add({.name = name,
         .value = arity == Flag::Arity::kSwitch ? "" : "V",
         .help = reason,
         .kind = Flag::Kind::kRefused,
         .arity = arity,
         .set = [=](Options&, Values) {
           throw UsageError(fmt::format("--{} is not implemented in this version", name), reason);
         }});
  }

  std::vector<Flag> take() { return std::move(flags_); }

 private:
  template <typename Field>
  static std::function<void(Options&)> to_default(Field Options::*field) {
    return [field](Options& o) { o.*field = Options{}.*field; };
  }

  void add(Flag flag) {
    flag.group = group_;
    flags_.push_back(std::move(flag));
  }

  std::string group_;
  std::vector<Flag> flags_;
};

const Choices<DecayStyle> kDecayStyles{{"constant", DecayStyle::kConstant},
                                       {"linear", DecayStyle::kLinear},
                                       {"cosine", DecayStyle::kCosine},
                                       {"WSD", DecayStyle::kWsd}};
const Choices<WsdDecayStyle> kWsdDecayStyles{{"exponential", WsdDecayStyle::kExponential},
                                             {"linear", WsdDecayStyle::kLinear},
                                             {"cosine", WsdDecayStyle::kCosine},
                                             {"minus_sqrt", WsdDecayStyle::kMinusSqrt}};
const Choices<ResumeHparams> kResumeHparams{{"cli", ResumeHparams::kCli},
                                            {"checkpoint", ResumeHparams::kCheckpoint}};
const Choices<MatmulPrecision> kMatmulPrecisions{{"auto", MatmulPrecision::kAuto},
                                                 {"bf16", MatmulPrecision::kBF16},
                                                 {"fp32", MatmulPrecision::kF32}};
const Choices<LongExamples> kLongExamples{{"refuse", LongExamples::kRefuse},
                                          {"truncate", LongExamples::kTruncate},
                                          {"drop", LongExamples::kDrop}};
const Choices<std::optional<Rounding>> kRoundings{
    {"auto", std::nullopt}, {"nearest", Rounding::kNearest}, {"stochastic", Rounding::kStochastic}};
const Choices<std::optional<Dtype>> kExpAvgDtypes{{"fp32", Dtype::kF32}, {"bf16", Dtype::kBF16}};
const Choices<std::optional<Dtype>> kExpAvgSqDtypes{
    {"fp32", Dtype::kF32}, {"bf16", Dtype::kBF16}, {"ue6m10", Dtype::kUE6M10}};
const Choices<std::optional<Dtype>> kWireDtypes{{"fp32", Dtype::kF32}, {"bf16", Dtype::kBF16}};
const Choices<std::optional<MasterMode>> kMasters{
    {"fp32", MasterMode::kFp32}, {"split", MasterMode::kSplit}, {"none", MasterMode::kNone}};

void add_model(Table& t) {
  t.group("model");
  t.text("load-hf", "DIR", &Options::load_hf,
         "start from a Hugging Face folder (config.json and safetensors) instead of dimensions");
  t.integer("num-layers", &Options::num_layers, "transformer layers", 1, arch::kMaxLayers);
  t.integer("hidden-size", &Options::hidden_size, "width", 1);
  t.integer("ffn-hidden-size", &Options::ffn_hidden_size, "width of the MLP", 1);
  t.integer("num-attention-heads", &Options::num_attention_heads, "query heads", 1);
  t.on_off("group-query-attention", &Options::group_query_attention,
           "fewer key/value heads than query heads: see --num-query-groups");
  t.integer("num-query-groups", &Options::num_query_groups,
            "key/value heads, with --group-query-attention", 1);
  t.integer("kv-channels", &Options::kv_channels, "size of a head; default: hidden size / heads",
            1);
  t.on_off("qk-layernorm", &Options::qk_layernorm, "RMSNorm of each head's query and key (Qwen3)");
  t.on_off("add-qkv-bias", &Options::add_qkv_bias,
           "biases of the query, key and value projections (Qwen2)");
  t.number("rotary-base", &Options::rotary_base, "base of the rotary frequencies", 1);
  t.number("norm-epsilon", &Options::norm_epsilon, "epsilon of the RMSNorms", 0, 1);
  t.integer("max-position-embeddings", &Options::max_position_embeddings,
            "longest sequence; default: --seq-length", 1);
  t.integer("padded-vocab-size", &Options::padded_vocab_size,
            "rows of the embedding; default: the tokenizer's vocabulary", 1);
  t.integer("make-vocab-size-divisible-by", &Options::make_vocab_size_divisible_by,
            "rounds the tokenizer's vocabulary up", 1);
  t.on_off("untie-embeddings-and-output-weights", &Options::untie_embeddings_and_output_weights,
           "an output matrix of its own");
  t.number("init-method-std", &Options::init_method_std, "standard deviation of initial weights", 0,
           100);
}

void add_data(Table& t) {
  t.group("data");
  t.list("data-path", "[WEIGHT] PREFIX…", &Options::data_path,
         ".bin/.idx files; several are mixed, by weight if weights are given");
  t.list("data", "FILE…", &Options::data,
         "text files, a document each, or .jsonl files of examples for fine-tuning; @LIST reads "
         "their names from a file, one a line");
  t.text("tokenizer", "byte|DIR", &Options::tokenizer,
         "byte (built in), or a Hugging Face folder (needs the Python package tokenizers)");
  t.also("tokenizer-name-or-path", "tokenizer", "DIR", &Options::tokenizer);
  t.text("split", "A,B,C", &Options::split, "shares of training, validation and test data");
  t.integer("seq-length", &Options::seq_length, "tokens of a sample", 1);
  t.on_off("reset-position-ids", &Options::reset_position_ids,
           "positions start anew in each document");
  t.on_off("reset-attention-mask", &Options::reset_attention_mask,
           "attention does not cross documents");
  t.on_off("eod-mask-loss", &Options::eod_mask_loss,
           "no loss on the token after the end of a document");
  t.on_off("no-packing", &Options::no_packing, "examples: one in each sequence, the rest padding");
  t.choice("long-examples", &Options::long_examples, kLongExamples,
           "examples that are longer than --seq-length");
}

void add_run(Table& t) {
  t.group("run");
  t.integer("micro-batch-size", &Options::micro_batch_size, "samples that are in memory at once",
            1);
  t.integer("global-batch-size", &Options::global_batch_size,
            "samples of a step; default: --micro-batch-size", 1);
  t.integer("train-iters", &Options::train_iters,
            "steps of the whole run, those before a resume included", 1);
  t.integer("seed", &Options::seed, "of initial weights, data order and rounding", 0,
            std::numeric_limits<int64_t>::max());
  t.integer("num-threads", &Options::num_threads,
            "threads of torch and of the kernels; default: the CPUs this process may use", 1,
            max_threads());
  t.choice("matmul-precision", &Options::matmul_precision, kMatmulPrecisions,
           "dtype of matmuls and activations; auto measures both at start");
  t.number("exit-duration-in-mins", &Options::exit_duration_in_mins,
           "save and stop after this time", 0, 1e9, true);
  t.integer("eval-interval", &Options::eval_interval,
            "steps between evaluations; there is one at the end too", 1);
  t.integer("eval-iters", &Options::eval_iters,
            "global batches of an evaluation, at most one pass; 0: none");
  t.integer("log-interval", &Options::log_interval, "steps between log lines", 1);
  t.text("log-dir", "DIR", &Options::log_dir, "where log.jsonl goes; default: --save");
  t.on_off("log-per-layer", &Options::log_per_layer,
           "norms of gradient and weight per layer, in log.jsonl");
  t.on_off("log-samples", &Options::log_samples,
           "which samples each step read, in log.jsonl, in the order of the global batch");
  t.on_off("quiet", &Options::quiet, "no progress bar, no start-up report");
  t.on_off("check-config", &Options::check_config,
           "print the effective configuration, layout and dtypes, and end");
}

void add_learning_rate(Table& t) {
  t.group(std::string(kLearningRateGroup));
  t.number("lr", &Options::lr, "highest learning rate");
  t.number("min-lr", &Options::min_lr, "where the decay ends");
  t.choice("lr-decay-style", &Options::lr_decay_style, kDecayStyles, "curve from --lr to --min-lr");
  t.integer("lr-decay-iters", &Options::lr_decay_iters, "steps to --min-lr; default: --train-iters",
            1);
  t.integer("lr-wsd-decay-iters", &Options::lr_wsd_decay_iters, "WSD: steps of the final fall", 1);
  t.choice("lr-wsd-decay-style", &Options::lr_wsd_decay_style, kWsdDecayStyles, "WSD: its curve");
  t.integer("lr-warmup-iters", &Options::lr_warmup_iters, "steps of linear warm-up from 0");
  t.number("lr-warmup-fraction", &Options::lr_warmup_fraction,
           "the same as a fraction of the decay steps", 0, 1);
}

void add_optimizer(Table& t) {
  t.group(std::string(kOptimizerGroup));
  t.number("weight-decay", &Options::weight_decay, "decoupled; not for 1-D parameters", 0, 1000);
  t.number("adam-beta1", &Options::adam_beta1, "decay of exp_avg", 0, 1, true);
  t.number("adam-beta2", &Options::adam_beta2, "decay of exp_avg_sq", 0, 1, true);
  t.number("adam-eps", &Options::adam_eps, "added to the root of exp_avg_sq");
  t.number("clip-grad", &Options::clip_grad, "largest gradient norm; 0: no clipping");
  t.integer("max-skipped-steps", &Options::max_skipped_steps,
            "non-finite steps in a row before the run ends with exit 6", 1);
}

void add_storage(Table& t) {
  t.group("storage of weights, gradients and state");
  t.on_off("bf16", &Options::bf16, "BF16 weights");
  t.on_off("o2-optimizer", &Options::o2_optimizer,
           "exp_avg and exp_avg_sq in bf16: 4 bytes per parameter less");
  t.on_off("o2-gradient", &Options::o2_gradient,
           "gradients accumulated in bf16: 2 bytes per parameter less");
  t.on_off("no-gradient-accumulation-fusion", &Options::no_gradient_accumulation_fusion,
           "weight gradients pass through a tensor of their own instead of adding straight into "
           "the FP32 buffer");
  t.choice("exp-avg-dtype", &Options::exp_avg_dtype, kExpAvgDtypes, "storage of exp_avg alone");
  t.choice("exp-avg-sq-dtype", &Options::exp_avg_sq_dtype, kExpAvgSqDtypes,
           "storage of exp_avg_sq alone; ue6m10 is the better 16-bit choice from beta2 = .99 up");
  t.choice("state-rounding", &Options::state_rounding, kRoundings,
           "of 16-bit exp_avg and exp_avg_sq; auto decides from the betas");
  t.on_off("allow-stalling-rounding", &Options::allow_stalling_rounding,
           "permits nearest where exp_avg_sq stops moving");
  t.choice("grad-accumulation-rounding", &Options::grad_accumulation_rounding, kRoundings,
           "of --o2-gradient; auto: stochastic above 32 micro-batches");
  t.text("fp32-params", "REGEX", &Options::fp32_params,
         "parameters whose names match keep FP32 weights, gradients and state");
  t.choice(
      "master", &Options::master, kMasters,
      "FP32 master of BF16 weights: whole, as a 16-bit remainder, or none (stochastic rounding)");
  t.on_off("reuse-fp32-param", &Options::reuse_fp32_param,
           "the same as --master split: 2 bytes per parameter less");
}

void add_checkpoints(Table& t) {
  t.group("checkpoints");
  t.text("save", "DIR", &Options::save, "where checkpoints go, one at the end and:");
  t.integer("save-interval", &Options::save_interval, "one every N steps", 1);
  t.on_off("async-save", &Options::async_save,
           "write them in the background, from a copy in memory that is as large as a rank's share");
  t.text("load", "DIR", &Options::load,
         "resume from its latest checkpoint; if it is also --save and empty, start fresh");
  t.integer("keep-last", &Options::keep_last, "delete all but the newest N; default: keep all", 1);
  t.integer("keep-every", &Options::keep_every,
            "with --keep-last: steps that are a multiple of N stay", 1);
  t.on_off("no-load-optim", &Options::no_load_optim,
           "resume weights and masters only: no exp_avg and exp_avg_sq, t = 0");
  t.on_off("no-load-rng", &Options::no_load_rng,
           "resume with --seed of the command line, at the beginning of the data");
  t.choice("resume-hparams", &Options::resume_hparams, kResumeHparams,
           "whose learning rate and optimizer settings hold where both say one");
  t.on_off("allow-data-change", &Options::allow_data_change,
           "resume with other data or another --seq-length, from the beginning of these");
  t.on_off("finetune", &Options::finetune,
           "start a new run from the weights and masters in --load, and take nothing else of it");
  t.on_off("convert-state", &Options::convert_state,
           "resume with other dtypes of state or another master than the checkpoint's");
  t.on_off("allow-lossy-master", &Options::allow_lossy_master,
           "with --convert-state: take BF16 weights where the checkpoint has no FP32 values");
}

void add_refused(Table& t) {
  t.group("not in this version");
  const std::string recompute = "activations are kept: a smaller --micro-batch-size saves memory";
  t.refused("recompute-granularity", recompute);
  t.refused("recompute-method", recompute);
  t.refused("recompute-num-layers", recompute);
  t.refused("enable-recompute-layers-per-pp-rank", recompute, Flag::Arity::kSwitch);
  t.refused("num-layers-per-virtual-pipeline-stage", "there is one pipeline stage");
}

void add_ranks(Table& t) {
  t.group(std::string(kRanksGroup));
  t.on_off("use-distributed-optimizer", &Options::use_distributed_optimizer,
           "shard master and state over the ranks (ZeRO-1): with several always on");
  t.on_off("overlap-grad-reduce", &Options::overlap_grad_reduce,
           "send a bucket of gradients as soon as backward has completed it");
  t.on_off("overlap-param-gather", &Options::overlap_param_gather,
           "gather updated weights while the next forward runs, bucket by bucket");
  t.bucket_size("ddp-bucket-size", &Options::ddp_bucket_size,
                "parameters of a bucket, or with a unit (64KiB) its bytes of gradient; default: "
                "32MiB");
  t.choice("grad-wire-dtype", &Options::grad_wire_dtype, kWireDtypes,
           "dtype in which FP32 gradients travel; default: as accumulated");
  t.integer("check-replicas", &Options::check_replicas,
            "compare the weights of all ranks every N steps; at start they always are", 1);
  t.number("distributed-timeout", &Options::distributed_timeout,
           "seconds that a collective may take", 0, 1e6, true);
  t.number("heartbeat-timeout", &Options::heartbeat_timeout,
           "seconds without a sign of life of another rank that end the run", 0, 1e6, true);
  t.only("distributed-backend", {"gloo"}, "the backend of CPU ranks",
         "leave it out or give gloo: NCCL moves tensors of GPUs");
}

void add_reference_scripts(Table& t) {
  t.group("accepted, nothing to do");
  const std::string one = "ranks are data-parallel: a larger size is not implemented here";
  for (const char* name :
       {"tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"}) {
    t.only(name, {"1"}, "ranks are data-parallel", one);
  }
  t.nothing_to_do("sequence-parallel", "there is one tensor-parallel rank");
  t.only("normalization", {"RMSNorm"}, "the only normalization", "leave it out or give RMSNorm");
  t.only("position-embedding-type", {"rope"}, "the only one", "leave it out or give rope");
  t.only("attention-mask-type", {"causal"}, "attention is causal", "leave it out");
  t.only("attention-dropout", {"0", "0.0"}, "there is no dropout", "give 0");
  t.only("hidden-dropout", {"0", "0.0"}, "there is no dropout", "give 0");
  t.only("tokenizer-type", {"PretrainedFromHF", "HuggingFaceTokenizer"}, "the folder decides",
         "give --tokenizer byte or --tokenizer DIR");
  t.nothing_to_do("swiglu", "the only MLP");
  t.nothing_to_do("disable-bias-linear", "no linear layer has a bias but with --add-qkv-bias");
  t.nothing_to_do("attention-softmax-in-fp32", "softmax always is");
  t.nothing_to_do("use-flash-attn", "libtorch picks its attention kernel");
  t.nothing_to_do("use-rotary-position-embeddings", "the only position embedding");
  for (const char* name : {"use-fused-rotary-pos-emb", "use-fused-swiglu", "use-fused-rmsnorm",
                           "no-masked-softmax-fusion"}) {
    t.nothing_to_do(name, "there is one implementation");
  }
  t.nothing_to_do("use-mcore-models", "there is one model");
  t.nothing_to_do("transformer-impl", "there is one model", Flag::Arity::kOne);
  t.nothing_to_do("spec", "there is one model", Flag::Arity::kMany);
  t.nothing_to_do("use-ascend-coc", "for another device");
  t.nothing_to_do("initial-loss-scale", "bf16 needs no loss scale", Flag::Arity::kOne);
  t.nothing_to_do("context-parallel-algo", "there is no context parallelism", Flag::Arity::kOne);
  t.nothing_to_do("use-fused-ring-attention-update", "there is no context parallelism");
  t.nothing_to_do("ckpt-format", "there is one format", Flag::Arity::kOne);
}

}  // namespace

std::span<const Flag> flag_table() {
  static const std::vector<Flag> table = [] {
    Table t;
    add_model(t);
    add_data(t);
    add_run(t);
    add_learning_rate(t);
    add_optimizer(t);
    add_storage(t);
    add_checkpoints(t);
    add_ranks(t);
    add_refused(t);
    add_reference_scripts(t);
    return t.take();
  }();
  return table;
}

}  // namespace halfstep::train
