#include "halfstep/train/check_options.h"

#include <fmt/core.h>

#include <regex>
#include <string_view>

#include "halfstep/core/error.h"
#include "halfstep/kernels/rounding_policy.h"
#include "halfstep/train/flags.h"
#include "halfstep/train/tokens.h"

namespace halfstep::train {
namespace {

void refuse_if(bool wrong, const std::string& what, const std::string& hint) {
  if (wrong) throw UsageError(what, hint);
}

void require(bool given, std::string_view flag, std::string_view meaning) {
  refuse_if(!given, fmt::format("--{} is missing", flag), fmt::format("--{}: {}", flag, meaning));
}

void check_model(const Options& o) {
  if (!o.checkpoint_model.empty()) return;  // which has the dimensions: check_dimensions compares
  if (!o.load_hf.empty()) {                 // which has the dimensions: check_dimensions compares
    refuse_if(o.is_given("init-method-std"), "--init-method-std has no effect with --load-hf",
              "drop it: the weights are those of the folder");
    return;
  }
  require(o.num_layers > 0, "num-layers", "transformer layers, or --load-hf DIR for a whole model");
  require(o.hidden_size > 0, "hidden-size", "width of the model");
  require(o.ffn_hidden_size > 0, "ffn-hidden-size", "width of the MLP");
  require(o.num_attention_heads > 0, "num-attention-heads", "query heads");
  refuse_if(o.num_query_groups > 0 && !o.group_query_attention,
            "--num-query-groups has no effect without --group-query-attention",
            "add --group-query-attention");
  refuse_if(o.group_query_attention && o.num_query_groups == 0,
            "--group-query-attention needs --num-query-groups", "add --num-query-groups N");
  refuse_if(o.qk_layernorm && o.add_qkv_bias,
            "--qk-layernorm and --add-qkv-bias together name no model that is implemented",
            "Qwen3 has the first, Qwen2 the second");
  refuse_if(o.kv_channels == 0 && o.hidden_size % o.num_attention_heads != 0,
            fmt::format("--hidden-size {} is no multiple of --num-attention-heads {}",
                        o.hidden_size, o.num_attention_heads),
            "give the size of a head with --kv-channels");
  refuse_if(o.max_position_embeddings > 0 && o.max_position_embeddings < o.seq_length,
            fmt::format("--max-position-embeddings {} is less than --seq-length {}",
                        o.max_position_embeddings, o.seq_length),
            "raise it or drop it");
  refuse_if(o.padded_vocab_size > 0 && o.make_vocab_size_divisible_by > 1,
            "--make-vocab-size-divisible-by has no effect with --padded-vocab-size", "drop one");
}

void check_data(const Options& o) {
  refuse_if(o.data.empty() && o.data_path.empty(), "no data",
            "give --data FILE… (text or .jsonl) or --data-path PREFIX… (.bin/.idx)");
  refuse_if(!o.data.empty() && !o.data_path.empty(), "--data and --data-path together",
            "tokenize the text with `halfstep data build` and give all as --data-path");
  refuse_if(!o.data.empty() && o.tokenizer.empty(), "--data needs a tokenizer",
            "add --tokenizer byte or --tokenizer DIR");
  const bool examples = names_examples(o.data);
  for (const char* flag : {"no-packing", "long-examples"}) {
    refuse_if(o.is_given(flag) && !examples,
              fmt::format("--{} has no effect without examples", flag),
              "drop it, or give .jsonl files of examples in --data");
  }
  for (const char* flag : {"reset-position-ids", "reset-attention-mask", "eod-mask-loss"}) {
    refuse_if(o.is_given(flag) && examples,
              fmt::format("--{} has no effect on examples: each has its own attention and positions",
                          flag),
              "drop it");
  }
  refuse_if(o.tokenizer.empty() && o.padded_vocab_size == 0 && o.load_hf.empty() &&
                o.checkpoint_model.empty(),
            "the size of the vocabulary is not known", "give --padded-vocab-size N or --tokenizer");
}

void check_run(const Options& o) {
  require(o.train_iters > 0, "train-iters", "steps of the run");
  require(o.seq_length > 0, "seq-length", "tokens of a sample");
  require(o.micro_batch_size > 0, "micro-batch-size", "samples that are in memory at once");
  refuse_if(o.global_batch_size % o.micro_batch_size != 0,
            fmt::format("--global-batch-size {} is no multiple of --micro-batch-size {}",
                        o.global_batch_size, o.micro_batch_size),
            "change one of them");
  const int64_t at_once = o.micro_batch_size * o.data_parallel_size;
  refuse_if(
      o.global_batch_size % at_once != 0,
      fmt::format("--global-batch-size {} is no multiple of --micro-batch-size {} on {} ranks",
                  o.global_batch_size, o.micro_batch_size, o.data_parallel_size),
      fmt::format("give a multiple of {}, or start another number of ranks", at_once));
  refuse_if(o.is_given("eval-interval") && o.eval_iters == 0,
            "--eval-interval has no effect with --eval-iters 0",
            "raise --eval-iters or drop --eval-interval");
  for (const auto& [name, given] :
       {std::pair{"log-per-layer", o.log_per_layer}, {"log-samples", o.log_samples}}) {
    refuse_if(given && o.log_dir.empty() && o.save.empty(),
              fmt::format("--{} writes to log.jsonl, and there is no folder for it", name),
              "add --log-dir DIR");
  }
}

void check_learning_rate(const Options& o) {
  require(o.lr > 0, "lr", "the highest learning rate");
  refuse_if(o.min_lr > o.lr, fmt::format("--min-lr {:g} is above --lr {:g}", o.min_lr, o.lr),
            "lower it");
  refuse_if(o.min_lr > 0 && o.lr_decay_style == DecayStyle::kConstant,
            "--min-lr has no effect with --lr-decay-style constant", "drop it");
  refuse_if(o.lr_decay_iters > 0 && o.lr_decay_style == DecayStyle::kConstant &&
                o.lr_warmup_fraction == 0,
            "--lr-decay-iters has no effect with --lr-decay-style constant",
            "drop it, or choose another --lr-decay-style");
  refuse_if(o.lr_warmup_iters > 0 && o.lr_warmup_fraction > 0,
            "--lr-warmup-iters and --lr-warmup-fraction together", "give one of them");
  const int64_t decay_iters = o.lr_decay_iters > 0 ? o.lr_decay_iters : o.train_iters;
  refuse_if(o.lr_warmup_iters >= decay_iters || o.lr_warmup_fraction >= 1,
            fmt::format("the warm-up does not end before the decay does ({} steps)", decay_iters),
            "lower --lr-warmup-iters or --lr-warmup-fraction");
  const bool wsd = o.lr_decay_style == DecayStyle::kWsd;
  refuse_if(wsd && (o.lr_wsd_decay_iters < 1 || o.lr_wsd_decay_iters > decay_iters),
            fmt::format("--lr-decay-style WSD: got --lr-wsd-decay-iters {}, expected 1 … {}",
                        o.lr_wsd_decay_iters, decay_iters),
            "give the steps of the final fall");
  refuse_if(
      !wsd && (o.lr_wsd_decay_iters > 0 || o.lr_wsd_decay_style != Options{}.lr_wsd_decay_style),
      "--lr-wsd-decay-iters and --lr-wsd-decay-style have no effect without WSD",
      "add --lr-decay-style WSD");
}

void check_dtypes(const Options& o) {
  refuse_if(o.o2_optimizer && !o.bf16, "--o2-optimizer needs BF16 weights", "add --bf16");
  refuse_if(o.o2_gradient && !o.bf16, "--o2-gradient needs BF16 weights", "add --bf16");
  refuse_if(o.o2_gradient && !o.no_gradient_accumulation_fusion,
            "--o2-gradient contradicts gradient accumulation fusion, which adds into FP32 buffers",
            "add --no-gradient-accumulation-fusion");
  refuse_if(
      o.o2_optimizer && o.exp_avg_storage() == Dtype::kF32 && o.exp_avg_sq_storage() == Dtype::kF32,
      "--o2-optimizer contradicts fp32 for both --exp-avg-dtype and --exp-avg-sq-dtype",
      "drop --o2-optimizer, or one of the two");
  refuse_if(o.master && o.reuse_fp32_param && *o.master != MasterMode::kSplit,
            fmt::format("--reuse-fp32-param contradicts --master {}", master_name(*o.master)),
            "give one of them");
  refuse_if(
      !o.bf16 && (o.reuse_fp32_param || o.master.value_or(MasterMode::kNone) != MasterMode::kNone),
      "FP32 weights are their own master", "add --bf16, or drop --master and --reuse-fp32-param");
  refuse_if(!o.bf16 && !o.fp32_params.empty(), "--fp32-params has no effect: all weights are FP32",
            "add --bf16 or drop it");
  // The library's compiler recurses into parentheses, and names are short.
  constexpr size_t kMaxPatternBytes = 1000;
  refuse_if(o.fp32_params.size() > kMaxPatternBytes,
            fmt::format("--fp32-params: got {} bytes, expected at most {}", o.fp32_params.size(),
                        kMaxPatternBytes),
            "name what the parameters have in common, e.g. 'norm|embed_tokens'");
  try {
    std::regex pattern(o.fp32_params);
  } catch (const std::regex_error& error) {
    throw UsageError(
        fmt::format("--fp32-params '{}' is no regular expression: {}", o.fp32_params, error.what()),
        "ECMAScript syntax, e.g. 'norm|embed_tokens'");
  }
}

void check_rounding(const Options& o) {
  const bool sixteen_bits =
      o.exp_avg_storage() != Dtype::kF32 || o.exp_avg_sq_storage() != Dtype::kF32;
  refuse_if(o.state_rounding && !sixteen_bits, "--state-rounding has no effect on FP32 state",
            "add --o2-optimizer or drop it");
  refuse_if(o.grad_accumulation_rounding && !o.o2_gradient,
            "--grad-accumulation-rounding has no effect on FP32 gradients",
            "add --o2-gradient or drop it");
  refuse_if(
      o.exp_avg_sq_storage() == Dtype::kUE6M10 && o.adam_eps < 1e-8,
      fmt::format("--exp-avg-sq-dtype ue6m10 needs --adam-eps of 1e-8 or more, got {:g}: below it "
                  "the format's small end would matter",
                  o.adam_eps),
      "raise --adam-eps or take --exp-avg-sq-dtype bf16");
  // Throws where nearest was asked for by name and stalls.
  const auto refuse_stalling = [&] {
    for (const auto& [dtype, beta, state] :
         {std::tuple{o.exp_avg_storage(), o.adam_beta1, "exp_avg"},
          std::tuple{o.exp_avg_sq_storage(), o.adam_beta2, "exp_avg_sq"}}) {
      if (dtype != Dtype::kF32) {
        kernels::choose_state_rounding(dtype, beta, o.state_rounding, /*allow_stalling=*/false,
                                       state);
      }
    }
  };
  if (!o.allow_stalling_rounding) return refuse_stalling();
  try {
    refuse_stalling();
  } catch (const UsageError&) {
    return;
  }
  throw UsageError(
      "--allow-stalling-rounding has no effect: nothing here is rounded so that it stalls",
      "drop it");
}

void check_ranks(const Options& o) {
  refuse_if(o.grad_wire_dtype == Dtype::kF32 && o.o2_gradient,
            "--grad-wire-dtype fp32 has no effect on BF16 gradients: the same numbers in twice the "
            "bytes",
            "drop it, or drop --o2-gradient");
}

void check_checkpoints(const Options& o) {
  refuse_if(o.save.empty() &&
                (o.save_interval > 0 || o.async_save || o.keep_last > 0 || o.keep_every > 0),
            "--save-interval, --async-save, --keep-last and --keep-every have no effect without "
            "--save",
            "add --save DIR");
  refuse_if(o.keep_every > 0 && o.keep_last == 0, "--keep-every has no effect without --keep-last",
            "add --keep-last N, or drop it: all checkpoints are kept");
  for (const char* flag : {"no-load-optim", "no-load-rng", "resume-hparams", "allow-data-change",
                           "finetune", "convert-state", "allow-lossy-master"}) {
    refuse_if(o.load.empty() && o.is_given(flag),
              fmt::format("--{} has no effect without --load", flag), "add --load DIR");
    refuse_if(o.finetune && o.is_given(flag) && flag != std::string_view("finetune"),
              fmt::format("--{} has no effect with --finetune, which takes the weights alone and "
                          "brings them to this run's formats",
                          flag),
              "drop it");
  }
  refuse_if(o.finetune && !o.load_hf.empty(),
            "--finetune and --load-hf together: weights of a checkpoint, and of a folder",
            "drop one");
  refuse_if(o.allow_lossy_master && !o.convert_state,
            "--allow-lossy-master has no effect without --convert-state", "add --convert-state");
}

}  // namespace

Options checked_options(Options options, int64_t world_size) {
  options.data_parallel_size = world_size;
  if (options.global_batch_size == 0) {
    options.global_batch_size = options.micro_batch_size * world_size;
  }
  check_model(options);
  check_run(options);
  check_data(options);
  check_learning_rate(options);
  check_dtypes(options);
  check_rounding(options);
  check_ranks(options);
  check_checkpoints(options);
  return options;
}

std::vector<std::string> idle_on_one_rank(const Options& options) {
  std::vector<std::string> idle;
  if (options.data_parallel_size > 1) return idle;
  for (const Flag& flag : flag_table()) {
    if (flag.group == kRanksGroup && flag.kind == Flag::Kind::kSetting &&
        options.is_given(flag.name)) {
      idle.push_back(flag.name);
    }
  }
  return idle;
}

void check_dimensions(const Options& o, const arch::ModelConfig& config, std::string_view source) {
  Options folder;
  folder.num_layers = config.num_layers;
  folder.hidden_size = config.hidden_size;
  folder.ffn_hidden_size = config.ffn_hidden_size;
  folder.num_attention_heads = config.num_attention_heads;
  folder.group_query_attention = config.num_query_groups != config.num_attention_heads;
  folder.num_query_groups = config.num_query_groups;
  folder.kv_channels = config.head_dim;
  folder.qk_layernorm = config.qk_norm;
  folder.add_qkv_bias = config.qkv_bias;
  folder.rotary_base = config.rope_theta;
  folder.norm_epsilon = config.norm_eps;
  folder.max_position_embeddings = config.max_position_embeddings;
  folder.padded_vocab_size = config.vocab_size;
  folder.make_vocab_size_divisible_by =
      config.vocab_size % o.make_vocab_size_divisible_by == 0 ? o.make_vocab_size_divisible_by : 1;
  folder.untie_embeddings_and_output_weights = !config.tie_embeddings;
  folder.init_method_std = o.init_method_std;
  for (const Flag& flag : flag_table()) {
    if (flag.group != "model" || flag.name == "load-hf" || !o.is_given(flag.name)) continue;
    const auto given = flag.get(o), theirs = flag.get(folder);
    refuse_if(given != theirs,
              fmt::format("--{} is {}, and {} for the model of --{}", flag.name, given.dump(),
                          theirs.dump(), source),
              fmt::format("drop --{}: the folder says it", flag.name));
  }
}

arch::ModelConfig model_config_from(const Options& o, int64_t vocab_size) {
  const int64_t multiple = o.make_vocab_size_divisible_by;
  int64_t rows = (vocab_size + multiple - 1) / multiple * multiple;
  if (o.padded_vocab_size > 0) {
    refuse_if(o.padded_vocab_size < vocab_size,
              fmt::format("--padded-vocab-size {} is less than the tokenizer's {} tokens",
                          o.padded_vocab_size, vocab_size),
              "raise it or drop it");
    rows = o.padded_vocab_size;
  }
  arch::ModelConfig config{
      .family = o.qk_layernorm   ? arch::Family::kQwen3
                : o.add_qkv_bias ? arch::Family::kQwen2
                                 : arch::Family::kLlama,
      .num_layers = o.num_layers,
      .hidden_size = o.hidden_size,
      .ffn_hidden_size = o.ffn_hidden_size,
      .num_attention_heads = o.num_attention_heads,
      .num_query_groups = o.group_query_attention ? o.num_query_groups : o.num_attention_heads,
      .head_dim = o.kv_channels > 0 ? o.kv_channels : o.hidden_size / o.num_attention_heads,
      .vocab_size = rows,
      .max_position_embeddings =
          o.max_position_embeddings > 0 ? o.max_position_embeddings : o.seq_length,
      .rope_theta = o.rotary_base,
      .rope_scaling = std::nullopt,
      .norm_eps = o.norm_epsilon,
      .qk_norm = o.qk_layernorm,
      .qkv_bias = o.add_qkv_bias,
      .tie_embeddings = !o.untie_embeddings_and_output_weights,
      .init_std = o.init_method_std};
  config.validate();
  return config;
}

}  // namespace halfstep::train
