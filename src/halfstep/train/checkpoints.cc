#include "halfstep/train/checkpoints.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <filesystem>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/core/error.h"
#include "halfstep/train/arena_slices.h"
#include "halfstep/train/flags.h"
#include "halfstep/train/resume.h"

namespace halfstep::train {
namespace {

using checkpoint::CheckpointReader;
using checkpoint::TrainState;

bool resumes_own_folder(const Options& options) {
  return !options.load.empty() && !options.save.empty() && !options.finetune &&
         std::filesystem::weakly_canonical(options.load) ==
             std::filesystem::weakly_canonical(options.save);
}

// Where a sample begins depends on both. With an imported model any data may begin.
bool is_same_data(const TrainState& state, const Options& options,
                  const data::SampleSource& training) {
  if (state.is_fresh()) return true;
  const auto seq_length = state.data.find("seq_length");
  return training.fingerprint() == state.data_fingerprint &&
         (seq_length == state.data.end() || *seq_length == options.seq_length);
}

// A table of the settings that differ and which of them hold.
void report_changes(const TrainState& state, const Options& options, RunLog& log) {
  const std::vector<ChangedSetting> changes = changed_settings(state, options);
  for (const std::string& line : settings_table(changes)) log.line(line);
  for (const ChangedSetting& change : changes) {
    log.event({{"event", "changed_setting"},
               {"flag", change.flag},
               {"checkpoint", change.checkpoint},
               {"this_run", change.here},
               {"used", change.checkpoint_wins ? change.checkpoint : change.here}});
  }
  if (!state.is_fresh() && state.torch_threads != at::get_num_threads()) {
    log.line(fmt::format("  torch threads {} -> {}: sums inside matmuls may round differently",
                         state.torch_threads, at::get_num_threads()));
  }
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
          options.finetune
              ? "choose another folder, or continue that run: --load without --finetune"
              : fmt::format("continue that run with --load {}, or choose another "
                            "folder",
                            options.save));
    }
  }
  if (options.load.empty()) return std::nullopt;
  if (resumes_itself && !checkpoint::is_checkpoint(options.load)) {
    log.line(fmt::format("--load {} holds no checkpoint yet: a fresh start", options.load));
    return std::nullopt;
  }
  std::optional<CheckpointReader> reader(std::in_place, options.load);
  for (const std::string& warning : reader->warnings()) log.line("warning: " + warning);
  log.line(fmt::format("{} {} (iteration {})", options.finetune ? "fine-tuning" : "resuming",
                       reader->directory().string(), reader->state().iteration));
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
  if (options.allow_data_change || is_same_data(state, options, training)) return;
  throw UsageError(
      "the training data, or the flags that cut them into samples (--split, --seq-length, "
      "--no-packing, --long-examples), differ from the checkpoint's, so its place in them means "
      "nothing",
      "give the same data, or --allow-data-change to read these from their beginning");
}

void restore(Trainer& t, const CheckpointReader& reader, RunLog& log) {
  const bool finetune = t.options.finetune;
  const bool without_state = finetune || t.options.no_load_optim;
  const TrainState& state = reader.state();
  const auto slices = slices_to_load(*t.arenas, t.ranks.rank(), !without_state);
  const auto report =
      reader.load(slices, {.convert_state = finetune || t.options.convert_state,
                           .allow_lossy_master = finetune || t.options.allow_lossy_master,
                           .allow_unrequested = without_state});
  for (const std::string& line : report.conversions) log.line("  converted: " + line);
  if (report.split_ties > 0) {
    log.line(
        fmt::format("  {} values lost an ulp on the way to a split master", report.split_ties));
  }
  if (finetune) {
    log.line("  --finetune: weights and masters only; a new run begins");
    return;
  }
  if (without_state) {
    log.line("  --no-load-optim: weights and masters only; exp_avg, exp_avg_sq and t start from 0");
  } else {
    t.optimizer->set_update_counts({.common = state.t, .exceptions = state.t_exceptions});
  }
  const bool same_data = is_same_data(state, t.options, *t.training);
  if (!same_data) {
    log.line(
        fmt::format("  --allow-data-change: other data than the checkpoint's, of which {} "
                    "samples were read; these begin with their first",
                    state.consumed_samples));
  }
  t.progress = {
      .iteration = state.iteration,
      .consumed_samples = t.options.no_load_rng || !same_data ? 0 : state.consumed_samples,
      .consumed_tokens = state.consumed_tokens,
      .skipped_steps = state.skipped_steps,
      .consecutive_skipped_steps = state.consecutive_skipped_steps};
  report_changes(state, t.options, log);
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
