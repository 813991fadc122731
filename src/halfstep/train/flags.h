// The one table of the flags of `train` (and of the commands that take the same ones): name, type,
// default, help, and what a flag does. The command line, --config files, --help, the effective
// configuration and the settings in checkpoints all go through it, so a flag cannot be parsed and
// then forgotten. Pure functions; every failure is a UsageError.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/train/options.h"

namespace halfstep::train {

struct Flag {
  enum class Kind {
    kSetting,      // fills a field of Options
    kNothingToDo,  // of the reference scripts: accepted (some with one value only), said at start
    kRefused,      // known, but this version cannot do it
  };
  enum class Arity { kSwitch, kOne, kMany };

  std::string name = {};  // without --
  std::string group = {};
  std::string value = {};  // what stands for the value in the help; empty for a switch
  std::string help = {};   // of kNothingToDo and kRefused: the reason
  Kind kind = Kind::kSetting;
  Arity arity = Arity::kOne;
  std::function<void(Options&, std::span<const std::string>)> set = {};
  // Null for what is not a setting, and for a second name of a setting.
  std::function<nlohmann::ordered_json(const Options&)> get = {};
  std::function<void(Options&)> reset = {};  // to what it is if not given; null where get is
  std::string second_name_of = {};
  bool is_text = false;  // a --config file gives a string, and not a number or true
};

std::span<const Flag> flag_table();
// The group of the flags that only mean something to several ranks.
inline constexpr std::string_view kRanksGroup =
    "data parallel: several processes, started by a launcher";
// Those of the hyper-parameters: they change what is learnt, and not what it takes.
inline constexpr std::string_view kLearningRateGroup = "learning rate";
inline constexpr std::string_view kOptimizerGroup = "optimizer";

struct ParsedFlags {
  Options options;
  std::vector<const Flag*> nothing_to_do;  // in order of appearance, each once
  bool help = false;                       // --help was there
};

// `args` without the program's and the subcommand's name. A file given by --config is read first,
// so that the command line wins.
ParsedFlags parse_flags(std::span<const std::string> args);

// What a JSON value of `flag` would be on the command line. `where` (" in FILE") is for the message
// of a value of another kind.
std::vector<std::string> json_values(const Flag& flag, const nlohmann::ordered_json& value,
                                     const std::string& where);

// False of what the settings of a run do not say about its results: where it writes, when it ends.
bool describes_the_run(const Flag& flag);

// All settings under their flags' names.
nlohmann::ordered_json settings_json(const Options& options);

// The same parted in two: those that were given, which are a --config file of this run, and the
// defaults of the others.
struct PartedSettings {
  nlohmann::ordered_json given, defaults;
};
PartedSettings parted_settings(const Options& options);

// The text of --help.
std::string flags_help();

// The candidate nearest to `word` by edit distance, empty if none is near.
std::string nearest_name(std::string_view word, std::span<const std::string> candidates);

}  // namespace halfstep::train
