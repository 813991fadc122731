#include <ATen/ATen.h>
#include <fmt/core.h>

#include <regex>
#include <string_view>

#include "halfstep/core/error.h"
#include "halfstep/dist/replica_check.h"
#include "halfstep/hf/folder_reader.h"
#include "halfstep/optim/memory_counter.h"
#include "halfstep/optim/weights.h"
#include "halfstep/train/check_options.h"
#include "halfstep/train/checkpoints.h"
#include "halfstep/train/loaded_model.h"
#include "halfstep/train/saver.h"
#include "halfstep/train/trainer.h"

namespace halfstep::train {
namespace {

void make_samples(Trainer& t) {
  const Options& o = t.options;
  const SampleOptions samples{.windows = {.seq_length = o.seq_length,
                                          .eod_token = t.tokens.eod_token,
                                          .reset_position_ids = o.reset_position_ids,
                                          .reset_attention_mask = o.reset_attention_mask,
                                          .eod_mask_loss = o.eod_mask_loss,
                                          .vocab_size = t.config.vocab_size},
                              .packing = !o.no_packing};
  t.training = make_samples(t.tokens, samples, t.seed, o.split, Split::kTraining);
  if (o.eval_iters > 0) {
    t.validation = make_samples(t.tokens, samples, t.seed, o.split, Split::kValidation);
  }
  if (!t.validation && o.is_given("eval-interval")) {
    throw UsageError(fmt::format("--eval-interval has no effect: --split {} leaves no validation "
                                 "data",
                                 o.split),
                     "drop it, or give a share or more data to validation");
  }
}

// A master keeps the bits that a BF16 weight has no room for. FP32 copies exist of one parameter at
// a time.
void load_hf_weights(Trainer& t, const hf::FolderReader& file, RunLog& log) {
  optim::Arenas& arenas = *t.arenas;
  std::vector<int64_t> wider;  // than their weights, and with a master
  for (int64_t p = 0; p < std::ssize(arenas.parameters()); ++p) {
    const layout::StorageFormat& format = arenas.layout().arena_of(p).format;
    if (format.master != MasterMode::kNone && file.wider_than_bf16(p)) {
      wider.push_back(p);
    } else {
      file.load(p, {arenas.data(layout::MemoryClass::kWeight, p), format.weight});
    }
  }
  optim::reset_masters(arenas);
  int64_t split_ties = 0;
  for (const int64_t p : wider) {
    const at::Tensor values = at::empty(arenas.parameters()[p].shape, at::kFloat);
    file.load(p, {values.data_ptr(), Dtype::kF32});
    split_ties += optim::set_weight(arenas, p, values);
  }
  if (split_ties > 0) {
    log.line(fmt::format("  {} values lost an ulp on the way to a split master", split_ties));
  }
  for (const std::string& name : file.ignored()) {
    log.line(fmt::format("  {}: in the files of --load-hf, not used", name));
  }
}

// What auto measured on rank 0 holds for all: ranks that compute in different dtypes would be slower
// than the slowest, and no run like another.
void agree_on_compute(ComputeChoice& choice, comm::Communicator& ranks) {
  double numbers[] = {choice.dtype == at::kBFloat16 ? 1.0 : 0.0, choice.peak_flops};
  ranks.broadcast(std::as_writable_bytes(std::span(numbers)), 0).wait();
  choice.dtype = numbers[0] == 1 ? at::kBFloat16 : at::kFloat;
  choice.peak_flops = numbers[1];
}

}  // namespace

arch::ModelConfig make_config(const Options& options, const TokenSources& tokens) {
  const bool resumed = !options.checkpoint_model.empty();
  if (!resumed && options.load_hf.empty()) return model_config_from(options, tokens.vocab_size);
  const std::string_view source = resumed ? "load" : "load-hf";
  arch::ModelConfig config = resumed ? arch::parse_hf_config(options.checkpoint_model, options.load)
                                     : arch::load_hf_config(options.load_hf + "/config.json");
  check_dimensions(options, config, source);
  if (tokens.vocab_size > config.vocab_size) {
    throw UsageError(fmt::format("the tokenizer has {} tokens, the model of --{} {}",
                                 tokens.vocab_size, source, config.vocab_size),
                     "give the tokenizer of that model: --tokenizer DIR");
  }
  if (options.seq_length > config.max_position_embeddings) {
    throw UsageError(fmt::format("--seq-length {} is longer than the {} positions of --{}",
                                 options.seq_length, config.max_position_embeddings, source),
                     resumed ? "lower --seq-length; the positions are those that the run began with"
                             : "lower --seq-length, or raise max_position_embeddings in its "
                               "config.json");
  }
  return config;
}

layout::Layout plan_layout(const Options& o, const std::vector<arch::Parameter>& parameters) {
  layout::LayoutOptions options{.format = {.weight = o.weight_dtype(),
                                           .gradient = o.gradient_dtype(),
                                           .master = o.master_mode(),
                                           .exp_avg = o.exp_avg_storage(),
                                           .exp_avg_sq = o.exp_avg_sq_storage()},
                                .keep_fp32 = nullptr,
                                .num_ranks = o.data_parallel_size,
                                .bucket_bytes = o.ddp_bucket_bytes(),
                                .wire = o.wire_dtype()};
  bool matched = o.fp32_params.empty();
  if (!o.fp32_params.empty()) {
    const std::regex pattern(o.fp32_params);
    options.keep_fp32 = [pattern](const arch::Parameter& parameter) {
      return std::regex_search(parameter.name, pattern);
    };
    for (const auto& parameter : parameters) matched |= options.keep_fp32(parameter);
  }
  if (!matched) {
    throw UsageError(fmt::format("--fp32-params '{}' matches no parameter", o.fp32_params),
                     fmt::format("their names are like '{}'", parameters.front().name));
  }
  return layout::build_layout(parameters, options);
}

std::unique_ptr<Trainer> set_up(const Options& options, comm::Communicator& ranks, RunLog& log) {
  check(ranks.size() == options.data_parallel_size, "set_up: options for other ranks");
  set_threads(options.num_threads);
  optim::MemoryCounter::instance();  // before the first tensor
  auto trainer = std::make_unique<Trainer>(ranks);
  Trainer& t = *trainer;
  t.options = options;

  const auto checkpoint = open_checkpoint(options, log);
  t.seed = static_cast<uint64_t>(t.options.seed);
  t.tokens = load_tokens(data_options(options));
  t.config = make_config(options, t.tokens);
  make_samples(t);
  if (checkpoint) {
    check_same_model(checkpoint->state(), t.config);
    if (!options.finetune) check_same_data(checkpoint->state(), options, *t.training);
  }
  std::optional<hf::FolderReader> hf_weights;
  if (!checkpoint && !options.load_hf.empty()) hf_weights.emplace(options.load_hf, t.config);

  t.compute = choose_compute(t.options.matmul_precision, options.bf16);
  agree_on_compute(t.compute, ranks);
  optim::MemoryCounter::instance().reset_peaks();  // its measurement is no part of the run
  auto parameters = arch::parameter_list(t.config);
  layout::Layout layout = plan_layout(t.options, parameters);
  t.arenas = std::make_unique<optim::Arenas>(std::move(parameters), std::move(layout),
                                              ranks.rank());
  t.gradients = std::make_unique<optim::GradientBuffer>(
      *t.arenas, optim::GradientBufferOptions{.fusion = !options.no_gradient_accumulation_fusion,
                                              .micro_batches = options.num_micro_batches(),
                                              .rounding = options.grad_accumulation_rounding,
                                              .seed = t.seed});
  t.optimizer = std::make_unique<optim::AdamW>(
      *t.arenas, optim::AdamWOptions{.beta1 = options.adam_beta1,
                                     .beta2 = options.adam_beta2,
                                     .eps = options.adam_eps,
                                     .weight_decay = options.weight_decay,
                                     .clip_grad = options.clip_grad,
                                     .state_rounding = options.state_rounding,
                                     .allow_stalling_rounding = options.allow_stalling_rounding,
                                     .seed = t.seed},
      &ranks);
  t.reducer = std::make_unique<dist::GradientReducer>(
      *t.arenas, *t.gradients, ranks,
      dist::ReducerOptions{.overlap = options.overlap_grad_reduce,
                           .in_flight = kBucketsInFlight});
  t.gather =
      std::make_unique<dist::ParameterGather>(*t.arenas, ranks, options.overlap_param_gather);
  t.fused = t.gradients->can_fuse(t.compute.dtype);
  t.sink = std::make_unique<GradientSink>(*t.gradients);
  t.model = std::make_unique<model::Model>(
      t.config, t.arenas->weights(),
      model::ModelOptions{.compute = t.compute.dtype,
                          .weight_gradients = t.sink.get(),
                          .before_weights = [gather = t.gather.get()](int64_t begin, int64_t end) {
                            gather->wait_for(begin, end);
                          }});
  t.schedule = make_schedule(t.options);
  if (options.async_save) prepare_async_save(t);

  if (checkpoint) {
    restore(t, *checkpoint, log);
  } else if (hf_weights) {
    load_hf_weights(t, *hf_weights, log);
  } else {
    optim::init_weights(*t.arenas, t.seed);
  }
  dist::check_replicas(*t.arenas, ranks);
  return trainer;
}

double flops_per_token(const arch::ModelConfig& config, int64_t seq_length) {
  double weights = 0;
  for (const arch::Parameter& parameter : arch::parameter_list(config)) {
    // An embedding is a look-up; tied, it is the output layer as well.
    const bool multiplied =
        parameter.kind == arch::ParameterKind::kLinear ||
        (parameter.kind == arch::ParameterKind::kEmbedding && config.tie_embeddings);
    if (multiplied) weights += static_cast<double>(parameter.numel());
  }
  const double attention = static_cast<double>(config.num_layers) *
                           static_cast<double>(config.num_attention_heads * config.head_dim) *
                           static_cast<double>(seq_length);
  return 6 * (weights + attention);
}

}  // namespace halfstep::train
