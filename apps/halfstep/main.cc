// halfstep: parse, call, print. Each subcommand has a file of its own beside this one.
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <typeinfo>

#include "commands.h"
#include "failure.h"
#include "halfstep/core/error.h"
#include "halfstep/train/flags.h"

namespace {

using halfstep::ExitCode;

int fail(ExitCode code, std::string_view what, std::string_view hint) {
  fmt::print(stderr, "halfstep: {}\n", what);
  if (!hint.empty()) fmt::print(stderr, "  {}\n", hint);
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

}  // namespace

int main(int argc, char** argv) {
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
  try {
    try {
      app.parse(argc, argv);
      return 0;
    } catch (const std::exception& error) {
      if (std::getenv("HALFSTEP_BACKTRACE")) {
        fmt::print(stderr, "{}: {}\n", typeid(error).name(), error.what());
      }
      throw;
    }
  } catch (const CLI::ExtrasError& error) {
    return fail(ExitCode::kUsage, error.what(), suggestion(app));
  } catch (const CLI::ParseError& error) {
    // --help and --version end here too, with code 0.
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  } catch (const std::exception&) {
    const auto failure = halfstep::apps::describe_failure(std::current_exception());
    return fail(failure.code, failure.what, failure.hint);
  }
}
