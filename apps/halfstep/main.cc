// halfstep: parse, call, print. Each subcommand has a file of its own beside this one.
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string_view>
#include <system_error>
#include <typeinfo>

#include "commands.h"
#include "failure.h"
#include "halfstep/core/error.h"
#include "halfstep/train/flags.h"
#include "process.h"

namespace {

using halfstep::ExitCode;

int fail(ExitCode code, std::string_view what, std::string_view hint) {
  halfstep::apps::print_error(hint.empty() ? fmt::format("halfstep: {}\n", what)
                                           : fmt::format("halfstep: {}\n  {}\n", what, hint));
  return static_cast<int>(code);
}

// "did you mean --json?" for the first argument that nobody took.
std::string suggestion(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::vector<std::string> names;
  for (const CLI::Option* option : command->get_options()) names.push_back(option->get_name());
  for (const CLI::App* child : command->get_subcommands({})) names.push_back(child->get_name());
  const auto extras = app.remaining(true);
  const std::string nearest =
      extras.empty() ? "" : halfstep::train::nearest_name(extras.front(), names);
  return nearest.empty() ? "see --help" : fmt::format("did you mean {}?", nearest);
}

// The commands for which a second start, of some tenths of a second, is worth while. Not bench: its
// figures are of the threads as they are.
bool computes(int argc, char** argv) {
  if (argc < 2) return false;
  const std::string_view command = argv[1];
  return command == "train" || command == "eval" || command == "generate";
}

// Output that could not be written is a failure of a command that did all the rest. `error` is its
// errno where it is known already.
int checked_output(int error = 0) {
  if (error == 0) error = halfstep::apps::finish_output();
  if (error == 0) return 0;
  return fail(ExitCode::kBadInput, fmt::format("cannot write the output: {}", std::strerror(error)),
              "free some space, or send it elsewhere");
}

int run(CLI::App& app, int argc, char** argv) {
  try {
    try {
      app.parse(argc, argv);
      return checked_output();
    } catch (const std::exception& error) {
      if (std::getenv("HALFSTEP_BACKTRACE")) {
        halfstep::apps::print_error(fmt::format("{}: {}\n", typeid(error).name(), error.what()));
      }
      throw;
    }
  } catch (const CLI::ExtrasError& error) {
    return fail(ExitCode::kUsage, error.what(), suggestion(app));
  } catch (const CLI::ParseError& error) {
    // --help and --version end here too, with code 0.
    if (error.get_exit_code() != 0) return fail(ExitCode::kUsage, error.what(), "see --help");
    app.exit(error);
    return checked_output();
  } catch (const std::exception& error) {
    // fmt::print throws then, somewhere in a command.
    if (std::ferror(stdout)) {
      const auto* system = dynamic_cast<const std::system_error*>(&error);
      return checked_output(system ? system->code().value() : 0);
    }
    const auto failure = halfstep::apps::describe_failure(std::current_exception());
    return fail(failure.code, failure.what, failure.hint);
  }
}

}  // namespace

int main(int argc, char** argv) {
  halfstep::apps::prepare_process();
  if (computes(argc, argv)) halfstep::apps::shorten_waits(argv);
  CLI::App app{"Train LLMs in BF16 with 16-bit optimizer state and gradients, computed in FP32."};
  app.name("halfstep");
  app.set_version_flag("--version", HALFSTEP_VERSION);
  app.require_subcommand(1);
  halfstep::apps::add_train(app);
  halfstep::apps::add_eval(app);
  halfstep::apps::add_generate(app);
  halfstep::apps::add_data(app);
  halfstep::apps::add_bench(app);
  halfstep::apps::add_info(app);
  halfstep::apps::add_inspect(app);
  halfstep::apps::add_convert(app);
  return run(app, argc, argv);
}
