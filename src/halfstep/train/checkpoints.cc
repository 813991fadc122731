#include "halfstep/train/checkpoints.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <filesystem>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/core/error.h"
#include "halfstep/io/units.h"
#include "halfstep/train/flags.h"

namespace halfstep::train {
namespace {

using checkpoint::CheckpointReader;
using checkpoint::TensorKind;
using checkpoint::TrainState;

// What a memory class is called in a checkpoint. Gradients are not stored.
std::optional<TensorKind> stored_kind(layout::MemoryClass c, Dtype dtype) {
  switch (c) {
    case layout::MemoryClass::kWeight:
      return TensorKind::kWeight;
    case layout::MemoryClass::kGradient:
      return std::nullopt;
    case layout::MemoryClass::kMaster:
      return dtype == Dtype::kI16 ? TensorKind::kRemainder : TensorKind::kMaster;
    case layout::MemoryClass::kExpAvg:
      return TensorKind::kExpAvg;
    case layout::MemoryClass::kExpAvgSq:
      return TensorKind::kExpAvgSq;
    case layout::MemoryClass::kMaxExpAvgSq:
      return TensorKind::kMaxExpAvgSq;
  }
  return std::nullopt;
}

bool is_state(TensorKind kind) {
  return kind == TensorKind::kExpAvg || kind == TensorKind::kExpAvgSq ||
         kind == TensorKind::kMaxExpAvgSq;
}

checkpoint::MutableSlice slice_of(const optim::Arenas& arenas, int64_t p, TensorKind kind,
                                  layout::MemoryClass c) {
  const arch::Parameter& parameter = arenas.parameters()[p];
  checkpoint::MutableSlice slice;
  static_cast<checkpoint::Slice&>(slice) = checkpoint::whole_slice(
      kind, parameter.name, parameter.shape, arenas.layout().arena_of(p).format.dtype(c));
  slice.data = arenas.data(c, p);
  return slice;
}

// A slice per stored tensor, in the arenas' own memory: what this rank owns of it (nothing of some,
// and then of length 0, which says that the tensor belongs to the model). With `whole_weights`, all
// of a weight.
std::vector<checkpoint::MutableSlice> stored_slices(const optim::Arenas& arenas, bool with_state,
                                                    bool whole_weights) {
  std::vector<checkpoint::MutableSlice> slices;
  for (int64_t p = 0; p < std::ssize(arenas.parameters()); ++p) {
    const layout::StorageFormat& format = arenas.layout().arena_of(p).format;
    const layout::ShardSlice* const owned = arenas.owned(p);
    for (const layout::MemoryClass c : layout::kMemoryClasses) {
      const auto kind = stored_kind(c, format.dtype(c));
      if (!kind || format.bytes_per_element(c) == 0) continue;
      if (is_state(*kind) && !with_state) continue;
      slices.push_back(slice_of(arenas, p, *kind, c));
      if (c == layout::MemoryClass::kWeight && whole_weights) continue;
      slices.back().start = owned == nullptr ? 0 : owned->first;
      slices.back().numel = owned == nullptr ? 0 : owned->numel;
      slices.back().data = owned == nullptr ? nullptr : arenas.data(c, *owned);
    }
  }
  return slices;
}

bool resumes_own_folder(const Options& options) {
  return !options.load.empty() && !options.save.empty() &&
         std::filesystem::weakly_canonical(options.load) ==
             std::filesystem::weakly_canonical(options.save);
}

std::string setting_text(const nlohmann::ordered_json& value) {
  if (!value.is_array() || value.size() <= 3) return value.is_null() ? "not given" : value.dump();
  return fmt::format("{} values", value.size());
}

// A folder whose checkpoints have lost their manifests is not an empty one: a run that took it for
// that would replace them.
void refuse_damaged(const std::string& folder) {
  const std::vector<std::string> damaged = checkpoint::folders_without_manifest(folder);
  if (damaged.empty()) return;
  throw InputError(fmt::format("'{}' has no complete checkpoint, but folders of some without "
                               "their {}: {}",
                               folder, checkpoint::kManifestFile, fmt::join(damaged, ", ")),
                   "put the missing files back, or choose another folder");
}

}  // namespace

std::optional<CheckpointReader> open_checkpoint(const Options& options, RunLog& log) {
  const bool resumes_itself = resumes_own_folder(options);
  if (!options.save.empty()) {
    if (!checkpoint::is_checkpoint(options.save)) {
      refuse_damaged(options.save);
    } else if (!resumes_itself) {
      throw UsageError(
          fmt::format("--save {} already holds checkpoints", options.save),
          fmt::format("continue that run with --load {}, or choose another folder", options.save));
    }
  }
  if (options.load.empty()) return std::nullopt;
  if (resumes_itself && !checkpoint::is_checkpoint(options.load)) {
    log.line(fmt::format("--load {} holds no checkpoint yet: a fresh start", options.load));
    return std::nullopt;
  }
  std::optional<CheckpointReader> reader(std::in_place, options.load);
  for (const std::string& warning : reader->warnings()) log.line("warning: " + warning);
  log.line(fmt::format("resuming {} (iteration {})", reader->directory().string(),
                       reader->state().iteration));
  return reader;
}

void check_same_model(const TrainState& state, const arch::ModelConfig& config) {
  const auto ours = nlohmann::json::parse(arch::to_hf_config(config));
  for (const auto& [key, value] : ours.items()) {
    const auto stored = state.model_config.find(key);
    if (stored == state.model_config.end() || *stored != value) {
      throw InputError(
          fmt::format("the checkpoint is of another model: {} is {} there and {} here", key,
                      stored == state.model_config.end() ? "missing" : stored->dump(),
                      value.dump()),
          "give the dimensions that the run began with");
    }
  }
}

void check_same_data(const TrainState& state, const Options& options,
                     const data::SampleSource& training) {
  if (options.no_load_rng || training.fingerprint() == state.data_fingerprint) return;
  throw UsageError(
      "the training data, --split or --seq-length differ from the checkpoint's, so its "
      "place in them means nothing",
      "give the same data, or --no-load-rng to read these from their beginning");
}

void report_changed_settings(const TrainState& state, const Options& options, RunLog& log) {
  const auto now = settings_json(options);
  for (const Flag& flag : flag_table()) {
    if (!describes_the_run(flag)) continue;
    const auto before = state.hyperparameters.find(flag.name);
    if (before == state.hyperparameters.end()) continue;
    const nlohmann::ordered_json old_value = *before;
    if (old_value == now[flag.name]) continue;
    log.line(fmt::format("  changed: --{} {} -> {}", flag.name, setting_text(old_value),
                         setting_text(now[flag.name])));
  }
  if (state.torch_threads != at::get_num_threads()) {
    log.line(fmt::format("  torch threads {} -> {}: sums inside matmuls may round differently",
                         state.torch_threads, at::get_num_threads()));
  }
}

void restore(Trainer& t, const CheckpointReader& reader, RunLog& log) {
  const bool without_state = t.options.no_load_optim;
  const TrainState& state = reader.state();
  const auto slices = stored_slices(*t.arenas, !without_state, /*whole_weights=*/true);
  const auto report = reader.load(slices, {.convert_state = t.options.convert_state,
                                           .allow_lossy_master = t.options.allow_lossy_master,
                                           .allow_unrequested = without_state});
  for (const std::string& line : report.conversions) log.line("  converted: " + line);
  if (report.split_ties > 0) {
    log.line(
        fmt::format("  {} values lost an ulp on the way to a split master", report.split_ties));
  }
  if (without_state) {
    log.line("  --no-load-optim: weights and masters only; exp_avg, exp_avg_sq and t start from 0");
  } else {
    t.optimizer->set_update_counts({.common = state.t, .exceptions = state.t_exceptions});
  }
  t.progress = {.iteration = state.iteration,
                .consumed_samples = t.options.no_load_rng ? 0 : state.consumed_samples,
                .consumed_tokens = state.consumed_tokens,
                .skipped_steps = state.skipped_steps,
                .consecutive_skipped_steps = state.consecutive_skipped_steps};
  report_changed_settings(state, t.options, log);
}

void save_run(const Trainer& t, RunLog& log) {
  const optim::UpdateCounts counts = t.optimizer->update_counts();
  nlohmann::json hyperparameters = settings_json(t.options);
  // What auto chose: a measurement, which a resumed run must not repeat.
  hyperparameters["matmul-precision"] = t.compute.dtype == at::kBFloat16 ? "bf16" : "fp32";
  TrainState state{
      .iteration = t.progress.iteration,
      .t = counts.common,
      .t_exceptions = counts.exceptions,
      .consumed_samples = t.progress.consumed_samples,
      .consumed_tokens = t.progress.consumed_tokens,
      .skipped_steps = t.progress.skipped_steps,
      .consecutive_skipped_steps = t.progress.consecutive_skipped_steps,
      .seed = t.seed,
      .data_fingerprint = t.training->fingerprint(),
      .torch_threads = at::get_num_threads(),
      .storage = t.arenas->layout().arenas[0].format,
      .fp32_params = {},
      .hyperparameters = std::move(hyperparameters),
      .model_config = nlohmann::json::parse(arch::to_hf_config(t.config)),
      .data = {{"seq_length", t.options.seq_length}, {"tokenizer", t.options.tokenizer}}};
  const auto& arenas = t.arenas->layout().arenas;
  for (size_t arena = 1; arena < arenas.size(); ++arena) {
    for (const auto& placement : arenas[arena].placements) {
      state.fp32_params.push_back(t.arenas->parameters()[placement.parameter].name);
    }
  }
  std::vector<checkpoint::TensorSlice> slices;
  for (const auto& slice : stored_slices(*t.arenas, /*with_state=*/true, /*whole_weights=*/false)) {
    checkpoint::TensorSlice stored;
    static_cast<checkpoint::Slice&>(stored) = slice;
    stored.data = slice.data;
    slices.push_back(std::move(stored));
  }
  // While steps are being skipped the newest weights may be the broken ones: older ones stay.
  const bool in_doubt = t.progress.consecutive_skipped_steps > 0;
  const auto result = checkpoint::save_checkpoint(
      t.options.save, state, slices,
      {.keep_last = in_doubt ? 0 : t.options.keep_last, .keep_every = t.options.keep_every},
      t.ranks);
  for (const std::string& warning : result.warnings) log.line("warning: " + warning);
  log.line(fmt::format("saved {} ({})", result.directory.string(), io::format_bytes(result.bytes)));
  log.event({{"event", "save"},
             {"step", t.progress.iteration},
             {"directory", result.directory.string()},
             {"bytes", result.bytes},
             {"removed", result.removed}});
}

io::JsonObject state_object(const CheckpointReader& reader, const nlohmann::json& object,
                            const std::string& key) {
  return {object, (reader.directory() / checkpoint::kManifestFile).string(), key};
}

arch::ModelConfig model_config_of(const CheckpointReader& reader) {
  return arch::parse_hf_config(reader.state().model_config.dump(),
                               (reader.directory() / checkpoint::kManifestFile).string());
}

}  // namespace halfstep::train
