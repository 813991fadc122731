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

bool is_left_open(const Flag& flag, const Options& options) {
  if (!describes_the_run(flag) || options.is_given(flag.name)) return false;
  // The first is taken over with the place in the data (--no-load-rng); the second describes a log.
  if (flag.name == "seed" || flag.name == "log-per-layer") return false;
  return std::none_of(kReplacedBy.begin(), kReplacedBy.end(), [&](const auto& pair) {
    return pair.first == flag.name && options.is_given(pair.second);
  });
}

}  // namespace

Options resumed_options(Options options, int64_t world_size) {
  if (options.load.empty() || !checkpoint::is_checkpoint(options.load)) return options;
  const checkpoint::CheckpointReader reader(options.load);
  const std::string file = (reader.directory() / checkpoint::kManifestFile).string();
  const bool same_ranks = std::ssize(reader.manifest().shards) == world_size;
  const Json settings = reader.state().hyperparameters;
  for (const Flag& flag : flag_table()) {
    const auto setting = settings.find(flag.name);
    if (setting == settings.end() || !is_left_open(flag, options)) continue;
    if (flag.name == "num-threads" && !same_ranks) continue;
    // "Not given" may have no text that the flag would take.
    if (setting->is_null() || *setting == flag.get(Options{})) continue;
    try {
      flag.set(options, json_values(flag, *setting, ""));
    } catch (const UsageError& error) {
      throw InputError(fmt::format("{}: hyperparameters: {}", file, error.what()),
                       "load another checkpoint");
    }
  }
  // Dimensions that are given are compared with it; a Hugging Face folder as well.
  if (!options.is_given("load-hf")) options.checkpoint_model = reader.state().model_config.dump();
  return options;
}

}  // namespace halfstep::train
