#include "halfstep/train/flags.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "halfstep/core/error.h"
#include "halfstep/io/json.h"

namespace halfstep::train {
namespace {

using Json = nlohmann::ordered_json;

const Flag* find_flag(std::string_view name) {
  for (const Flag& flag : flag_table()) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

const Flag& require_flag(const std::string& name, const std::string& where) {
  if (const Flag* flag = find_flag(name)) return *flag;
  std::vector<std::string> names;
  for (const Flag& flag : flag_table()) names.push_back(flag.name);
  const std::string nearest = nearest_name(name, names);
  throw UsageError(fmt::format("unknown flag --{}{}", name, where),
                   nearest.empty() ? "all flags: halfstep train --help"
                                   : fmt::format("did you mean --{}?", nearest));
}

// Settings are kept in log.jsonl and in checkpoints, and JSON can only hold UTF-8.
void check_utf8(const Flag& flag, const std::string& value) {
  try {
    Json(value).dump();
  } catch (const Json::type_error&) {
    throw UsageError(fmt::format("--{}: '{}' is not UTF-8", flag.name, value),
                     "rename that file or folder");
  }
}

class Parser {
 public:
  // Later calls win. Values of a list replace those of an earlier source.
  void apply(const Flag& flag, const std::vector<std::string>& values) {
    for (const std::string& value : values) check_utf8(flag, value);
    flag.set(result_.options, values);
    if (flag.kind == Flag::Kind::kSetting) {
      result_.options.given.insert(flag.second_name_of.empty() ? flag.name : flag.second_name_of);
    }
    auto& idle = result_.nothing_to_do;
    if (flag.kind == Flag::Kind::kNothingToDo &&
        std::find(idle.begin(), idle.end(), &flag) == idle.end()) {
      idle.push_back(&flag);
    }
  }
  ParsedFlags& result() { return result_; }

 private:
  ParsedFlags result_;
};

std::string json_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Json read_config(const std::string& path) {
  try {
    return io::read_json_file(path);
  } catch (const InputError& error) {  // it is a part of the command line
    throw UsageError(fmt::format("--config: {}", error.what()), error.hint());
  }
}

void apply_config(Parser& parser, const std::string& path) {
  const Json config = read_config(path);
  const std::string where = fmt::format(" in {}", path);
  if (!config.is_object()) {
    throw UsageError(fmt::format("{} is no JSON object of flags and their values", path));
  }
  for (const auto& [name, value] : config.items()) {
    const Flag& flag = require_flag(name, where);
    if (value.is_null()) continue;
    const std::vector<std::string> values = json_values(flag, value, where);
    // A switch that is off and has no field to say so is not there.
    if (flag.arity == Flag::Arity::kSwitch && !flag.get && values[0] == "false") continue;
    parser.apply(flag, values);
  }
}

bool is_flag(const std::string& argument) { return argument.starts_with("--"); }

struct Given {
  const Flag* flag;
  std::vector<std::string> values;
};

// Splits one "--name=value" or "--name value…" off `args` at `position`.
Given take_flag(std::span<const std::string> args, size_t& position) {
  const std::string& argument = args[position++];
  if (!is_flag(argument)) {
    throw UsageError(fmt::format("got '{}' where a flag was expected", argument),
                     "flags begin with --; all of them: halfstep train --help");
  }
  const size_t equals = argument.find('=');
  const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
  Given given{&require_flag(name, ""), {}};
  const Flag& flag = *given.flag;
  if (equals != std::string::npos) {
    given.values.push_back(argument.substr(equals + 1));
    if (flag.arity == Flag::Arity::kSwitch && given.values[0] != "true" &&
        given.values[0] != "false") {
      throw UsageError(
          fmt::format("--{}: got '{}', expected nothing, =true or =false", name, given.values[0]));
    }
    return given;
  }
  if (flag.arity == Flag::Arity::kSwitch) {
    given.values.push_back("true");
    return given;
  }
  while (position < args.size() && !is_flag(args[position]) &&
         (flag.arity == Flag::Arity::kMany || given.values.empty())) {
    given.values.push_back(args[position++]);
  }
  if (given.values.empty()) {
    throw UsageError(fmt::format("--{} needs a value", name),
                     fmt::format("--{} {}: {}", name, flag.value, flag.help));
  }
  return given;
}

}  // namespace

std::vector<std::string> json_values(const Flag& flag, const Json& value,
                                     const std::string& where) {
  const bool is_list = flag.arity == Flag::Arity::kMany;
  const char* expected = is_list                              ? "a list"
                         : flag.arity == Flag::Arity::kSwitch ? "true or false"
                         : flag.is_text                       ? "a string"
                                                              : "one value";
  if (flag.arity == Flag::Arity::kSwitch ? !value.is_boolean()
      : flag.is_text                     ? !value.is_string()
                                         : value.is_array() != is_list || value.is_object()) {
    throw UsageError(
        fmt::format("{}{}: got {}, expected {}", flag.name, where, value.dump(), expected));
  }
  if (!is_list) return {json_text(value)};
  std::vector<std::string> values;
  for (const Json& item : value) values.push_back(json_text(item));
  return values;
}

bool describes_the_run(const Flag& flag) {
  return flag.get && flag.group != "checkpoints" && flag.name != "log-dir" &&
         flag.name != "log-per-layer" && flag.name != "log-samples" && flag.name != "quiet" &&
         flag.name != "check-config" && flag.name != "exit-duration-in-mins";
}

ParsedFlags parse_flags(std::span<const std::string> args) {
  Parser parser;
  std::vector<std::string> rest;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--help" || args[i] == "-h") {
      parser.result().help = true;
      return parser.result();
    }
    if (args[i] == "--config" || args[i].starts_with("--config=")) {
      if (args[i] == "--config" && (i + 1 == args.size() || is_flag(args[i + 1]))) {
        throw UsageError("--config needs a value",
                         "--config FILE.json: settings by their flags' names");
      }
      apply_config(parser, args[i] == "--config" ? args[++i] : args[i].substr(9));
    } else {
      rest.push_back(args[i]);
    }
  }
  // A list that is given several times is one list.
  std::vector<Given> all;
  for (size_t position = 0; position < rest.size();) {
    Given given = take_flag(rest, position);
    const auto same =
        std::find_if(all.begin(), all.end(), [&](const Given& g) { return g.flag == given.flag; });
    if (same == all.end()) {
      all.push_back(std::move(given));
    } else if (given.flag->arity == Flag::Arity::kMany) {
      same->values.insert(same->values.end(), given.values.begin(), given.values.end());
    } else {
      same->values = std::move(given.values);
    }
  }
  for (const Given& given : all) parser.apply(*given.flag, given.values);
  return parser.result();
}

Json settings_json(const Options& options) {
  Json settings = Json::object();
  for (const Flag& flag : flag_table()) {
    if (flag.get) settings[flag.name] = flag.get(options);
  }
  return settings;
}

PartedSettings parted_settings(const Options& options) {
  PartedSettings parted{Json::object(), Json::object()};
  for (const Flag& flag : flag_table()) {
    if (!flag.get || flag.name == "check-config")
      continue;  // asks for this, and is no setting of it
    (options.is_given(flag.name) ? parted.given : parted.defaults)[flag.name] = flag.get(options);
  }
  return parted;
}

std::string flags_help() {
  std::string text =
      "Usage: halfstep train [FLAGS]\n\nTrains a model.\n\n"
      "  --config FILE.json\n      settings by their flags' names; the command line wins\n";
  std::string group;
  for (const Flag& flag : flag_table()) {
    if (flag.group != group) text += fmt::format("\n{}:\n", group = flag.group);
    text += fmt::format("  --{}{}{}\n      {}", flag.name, flag.value.empty() ? "" : " ",
                        flag.value, flag.help);
    if (flag.get) {
      const Json value = flag.get(Options{});
      const bool given = !value.is_null() && value != Json(0) && value != Json("") &&
                         !value.is_boolean() && !value.is_array();
      if (given) text += fmt::format(" (default {})", json_text(value));
    }
    text += '\n';
  }
  return text;
}

}  // namespace halfstep::train
