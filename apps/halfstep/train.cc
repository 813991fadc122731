// `halfstep train`: a training run. Its flags are a table of their own (train/flags.h).
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>

#include "commands.h"
#include "halfstep/train/check_options.h"
#include "halfstep/train/flags.h"
#include "halfstep/train/run.h"

namespace halfstep::apps {
namespace {

void run_train(const std::vector<std::string>& args) {
  const train::ParsedFlags parsed = train::parse_flags(args);
  if (parsed.help) {
    fmt::print("{}", train::flags_help());
    return;
  }
  train::check_world_size(std::getenv("WORLD_SIZE"));
  const train::Options options = train::checked_options(parsed.options);
  std::string idle;
  for (const train::Flag* flag : parsed.nothing_to_do) {
    idle += fmt::format("{}--{} ({})", idle.empty() ? "" : ", ", flag->name, flag->help);
  }
  if (!idle.empty() && !options.check_config) fmt::print("accepted, nothing to do: {}\n", idle);
  train::run_training(options, stdout);
}

}  // namespace

void add_train(CLI::App& app) {
  auto* command = app.add_subcommand("train", "train a model");
  // Everything after the name belongs to the table, --help included.
  command->set_help_flag();
  command->prefix_command();
  command->callback([command] {
    std::vector<std::string> args = command->remaining();
    run_train(args);
  });
}

}  // namespace halfstep::apps
