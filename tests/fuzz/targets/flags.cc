// The flags of `train` (parts: a --config file, the command line with one argument a line). Every
// failure is a UsageError, and the settings that are kept in checkpoints mean the same when they
// are read again.
#include "halfstep/train/flags.h"

#include "halfstep/core/test_folder.h"
#include "halfstep/train/check_options.h"
#include "target.h"

namespace halfstep::fuzz {
namespace {

std::vector<std::string> arguments(std::string_view text) {
  std::vector<std::string> args;
  for (size_t end = 0; !text.empty(); text.remove_prefix(std::min(end + 1, text.size()))) {
    end = std::min(text.find('\n'), text.size());
    args.emplace_back(text.substr(0, end));
  }
  return args;
}

// The flags that the settings stand for, as a resumed run takes them.
std::vector<std::string> flags_of(const nlohmann::ordered_json& settings) {
  std::vector<std::string> args;
  for (const train::Flag& flag : train::flag_table()) {
    if (!settings.contains(flag.name) || settings[flag.name].is_null()) continue;
    for (const std::string& value : train::json_values(flag, settings[flag.name], "")) {
      args.push_back("--" + flag.name + "=" + value);
    }
  }
  return args;
}

// Settings that differ from the defaults: those hold "not given", which no command line can say.
nlohmann::ordered_json given_settings(const train::Options& options) {
  nlohmann::ordered_json settings = train::settings_json(options);
  for (const train::Flag& flag : train::flag_table()) {
    if (!options.is_given(flag.name)) settings.erase(flag.name);
  }
  return settings;
}

void check_round_trip(const train::Options& options) {
  const auto settings = given_settings(options);
  const train::ParsedFlags again = train::parse_flags(flags_of(settings));
  check(given_settings(again.options) == settings, "settings round-trip");
}

}  // namespace
}  // namespace halfstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  static const TestFolder folder;
  const auto parts = fuzz::split_parts(fuzz::text_of(data, size), 2);
  std::vector<std::string> args = fuzz::arguments(parts[1]);
  for (const std::string& arg : args) {
    if (arg.starts_with("--config")) return 0;  // reads whatever file the fuzzer names
  }
  if (!parts[0].empty()) args.push_back("--config=" + folder.write("c.json", parts[0]));
  try {
    const train::ParsedFlags parsed = train::parse_flags(args);
    if (parsed.help) return 0;
    fuzz::check_round_trip(parsed.options);
    const auto& files = parsed.options.data;
    const auto is_list = [](const std::string& file) { return file.starts_with("@"); };
    // Lists are read from the disk.
    if (std::none_of(files.begin(), files.end(), is_list))
      train::checked_options(parsed.options, 4);
  } catch (const UsageError& error) {
    check(*error.what() != '\0', "a refusal says why");
  }
  return 0;
}
