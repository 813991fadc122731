// `halfstep train`: a training run. Its flags are a table of their own (train/flags.h).
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "commands.h"
#include "halfstep/core/thread_pool.h"
#include "halfstep/dist/launch.h"
#include "halfstep/dist/rendezvous.h"
#include "halfstep/train/check_options.h"
#include "halfstep/train/flags.h"
#include "halfstep/train/resume.h"
#include "halfstep/train/run.h"
#include "halfstep/train/stop_request.h"

namespace halfstep::apps {
namespace {

void report_idle_flags(const train::ParsedFlags& parsed, const train::Options& options) {
  std::string idle;
  for (const train::Flag* flag : parsed.nothing_to_do) {
    idle += fmt::format("{}--{} ({})", idle.empty() ? "" : ", ", flag->name, flag->help);
  }
  for (const std::string& name : train::idle_on_one_rank(options)) {
    idle += fmt::format("{}--{} (there are no other ranks)", idle.empty() ? "" : ", ", name);
  }
  // Not fmt::print, which throws: output that cannot be written ends no run.
  if (!idle.empty()) std::fputs(("accepted, nothing to do: " + idle + "\n").c_str(), stdout);
}

// Ranks on one machine share its CPUs, unless somebody has said how many threads to use.
void share_cpus(train::Options& options, const dist::Launch& launch) {
  if (options.num_threads > 0 || launch.local_world_size == 1 || std::getenv("OMP_NUM_THREADS")) {
    return;
  }
  options.num_threads = std::max(1, available_cpus() / launch.local_world_size);
}

dist::GroupOptions group_options(const train::Options& options) {
  const auto seconds = [](double s) {
    return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(1000 * s)));
  };
  dist::GroupOptions group;
  group.distributed_timeout = seconds(options.distributed_timeout);
  group.version = HALFSTEP_VERSION;
  group.watchdog.timeout = seconds(options.heartbeat_timeout);
  return group;
}

void run_train(const std::vector<std::string>& args) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader of the log that is gone ends no run
  const train::EndOnSignal end_on_signal;
  const train::ParsedFlags parsed = train::parse_flags(args);
  if (parsed.help) {
    fmt::print("{}", train::flags_help());
    return;
  }
  const dist::Launch launch = dist::read_launch(dist::process_environment());
  train::Options options = train::checked_options(
      train::resumed_options(parsed.options, launch.world_size), launch.world_size);
  share_cpus(options, launch);
  if (launch.rank == 0 && !options.check_config) report_idle_flags(parsed, options);
  dist::Group group(launch, group_options(options));
  try {
    train::run_training(options, group.communicator(), stdout);
    group.finish();
  } catch (...) {
    group.end_with(std::current_exception());
  }
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
