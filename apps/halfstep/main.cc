// halfstep: parse, call, print. Each subcommand has a file of its own beside this one.
#include <fmt/core.h>

#include <cstdio>
#include <new>

#include "commands.h"
#include "halfstep/core/error.h"

namespace {

int fail(halfstep::ExitCode code, const char* what, const std::string& hint) {
  fmt::print(stderr, "halfstep: {}\n", what);
  if (!hint.empty()) fmt::print(stderr, "  {}\n", hint);
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  using halfstep::ExitCode;
  CLI::App app{"Train LLMs in BF16 with 16-bit optimizer state and gradients, computed in FP32."};
  app.name("halfstep");
  app.set_version_flag("--version", HALFSTEP_VERSION);
  app.require_subcommand(1);
  halfstep::apps::add_data(app);
  halfstep::apps::add_info(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    // --help and --version end here too, with code 0.
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  } catch (const halfstep::Error& error) {
    return fail(error.code(), error.what(), error.hint());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kOutOfMemory, "out of memory", "see docs/memory.md for what to switch on");
  } catch (const std::exception& error) {
    return fail(ExitCode::kInternal, error.what(), "this is a fault in halfstep; please report it");
  }
}
