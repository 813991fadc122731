#include "halfstep/train/resume.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <utility>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/core/error.h"
#include "halfstep/train/flags.h"

namespace halfstep::train {
namespace {

using Json = nlohmann::ordered_json;

// Where the second one is given, the first one of the checkpoint's run has no place any more.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kReplacedBy{
    {{"data", "data-path"},
     {"data-path", "data"},
     {"lr-warmup-iters", "lr-warmup-fraction"},
     {"lr-warmup-fraction", "lr-warmup-iters"},
     {"min-lr", "lr-decay-style"},
     {"lr-decay-iters", "lr-decay-style"},
     {"lr-wsd-decay-iters", "lr-decay-style"},
     {"lr-wsd-decay-style", "lr-decay-style"},
     {"master", "reuse-fp32-param"},
     {"reuse-fp32-param", "master"}}};

// Settings that are the checkpoint's to decide, whatever is given.
bool checkpoint_decides(const Flag& flag, const Options& options) {
  if (flag.name == "seed") return !options.no_load_rng;
  return options.resume_hparams == ResumeHparams::kCheckpoint &&
         (flag.group == kLearningRateGroup || flag.group == kOptimizerGroup);
}

bool is_left_open(const Flag& flag, const Options& options) {
  if (!describes_the_run(flag) || options.is_given(flag.name)) return false;
  if (flag.name == "seed") return checkpoint_decides(flag, options);
  return std::none_of(kReplacedBy.begin(), kReplacedBy.end(), [&](const auto& pair) {
    return pair.first == flag.name && options.is_given(pair.second);
  });
}

std::string setting_text(const Json& value) {
  if (value.is_null()) return "not given";
  if (value.is_array() && value.size() > 3) return fmt::format("{} values", value.size());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Takes back what the command line says of settings that the checkpoint decides.
void give_way(Options& options, const Json& settings) {
  for (const Flag& flag : flag_table()) {
    const auto setting = settings.find(flag.name);
    if (setting == settings.end() || !options.is_given(flag.name) ||
        !checkpoint_decides(flag, options)) {
      continue;
    }
    const Json given = flag.get(options);
    if (given != *setting) options.overruled.emplace(flag.name, setting_text(given));
    flag.reset(options);
    options.given.erase(flag.name);
  }
}

void take_over(Options& options, const Flag& flag, const Json& setting, const std::string& file) {
  // "Not given" may have no text that the flag would take.
  if (setting.is_null() || setting == flag.get(Options{})) return;
  try {
    flag.set(options, json_values(flag, setting, ""));
  } catch (const UsageError& error) {
    throw InputError(fmt::format("{}: hyperparameters: {}", file, error.what()),
                     "load another checkpoint");
  }
}

// A curve that ended with the run it was made for ends there still.
void keep_curve(Options& options, const Json& settings) {
  const auto iterations = settings.find("train-iters");
  const bool follows =
      options.lr_decay_iters == 0 &&
      (options.lr_decay_style != DecayStyle::kConstant || options.lr_warmup_fraction > 0);
  if (!follows || iterations == settings.end() || !iterations->is_number_integer()) return;
  if (*iterations != options.train_iters) options.lr_decay_iters = iterations->get<int64_t>();
}

}  // namespace

Options resumed_options(Options options, int64_t world_size) {
  if (options.load.empty() || !checkpoint::is_checkpoint(options.load)) return options;
  const checkpoint::CheckpointReader reader(options.load);
  const std::string file = (reader.directory() / checkpoint::kManifestFile).string();
  const bool same_ranks = std::ssize(reader.manifest().shards) == world_size;
  const Json settings = reader.state().hyperparameters;
  if (!options.finetune) give_way(options, settings);
  for (const Flag& flag : flag_table()) {
    const auto setting = settings.find(flag.name);
    if (setting == settings.end() || !is_left_open(flag, options)) continue;
    if (options.finetune && flag.name != "tokenizer") continue;
    if (flag.name == "num-threads" && !same_ranks) continue;
    take_over(options, flag, *setting, file);
  }
  if (options.resume_hparams == ResumeHparams::kCheckpoint) keep_curve(options, settings);
  // Dimensions that are given are compared with it; a Hugging Face folder as well.
  if (!options.is_given("load-hf")) options.checkpoint_model = reader.state().model_config.dump();
  return options;
}

std::vector<ChangedSetting> changed_settings(const checkpoint::TrainState& state,
                                             const Options& options) {
  const Json now = settings_json(options);
  std::vector<ChangedSetting> changes;
  for (const Flag& flag : flag_table()) {
    const auto before = state.hyperparameters.find(flag.name);
    if (!describes_the_run(flag) || before == state.hyperparameters.end()) continue;
    const std::string stored = setting_text(*before);
    const auto overruled = options.overruled.find(flag.name);
    if (overruled != options.overruled.end()) {
      changes.push_back({flag.name, stored, overruled->second, /*checkpoint_wins=*/true});
    } else if (const Json& value = now[flag.name]; value != Json(*before)) {
      changes.push_back({flag.name, stored, setting_text(value), /*checkpoint_wins=*/false});
    }
  }
  return changes;
}

std::vector<std::string> settings_table(const std::vector<ChangedSetting>& changes) {
  if (changes.empty()) return {};
  size_t flag_width = 0, stored_width = std::string_view("checkpoint").size(),
         here_width = std::string_view("this run").size();
  for (const ChangedSetting& change : changes) {
    flag_width = std::max(flag_width, change.flag.size() + 2);
    stored_width = std::max(stored_width, change.checkpoint.size());
    here_width = std::max(here_width, change.here.size());
  }
  const auto line = [&](std::string_view flag, std::string_view stored, std::string_view here,
                        std::string_view used) {
    return fmt::format("  {:<{}}  {:<{}}  {:<{}}  {}", flag, flag_width, stored, stored_width, here,
                       here_width, used);
  };
  std::vector<std::string> lines{line("", "checkpoint", "this run", "used")};
  for (const ChangedSetting& change : changes) {
    lines.push_back(line("--" + change.flag, change.checkpoint, change.here,
                         change.checkpoint_wins ? "the checkpoint's" : "this run's"));
  }
  return lines;
}

}  // namespace halfstep::train
