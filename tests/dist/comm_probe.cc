// A rank that only communicates: what test_processes.py starts, kills, stops and cuts off.
//   comm_probe check             every operation, checked to the byte
//   comm_probe loop              operations until rank 0 has had enough
// with name=value arguments, read below. Ends as the trainer does: one line on stderr, an exit
// code.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "halfstep/comm/communicator_checks.h"
#include "halfstep/core/error.h"
#include "halfstep/dist/rendezvous.h"

namespace halfstep {
namespace {

using std::chrono::milliseconds;

class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 2; i < argc; ++i) {
      const std::string text = argv[i];
      values_[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    }
  }
  std::string text(const std::string& name, const std::string& otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : found->second;
  }
  int number(const std::string& name, int otherwise) const {
    return std::stoi(text(name, std::to_string(otherwise)));
  }

 private:
  std::map<std::string, std::string> values_;
};

// One line with the process id, once the rank has been through all kinds of operations.
void say_running(const Arguments& arguments, int rank) {
  const std::string folder = arguments.text("folder", "");
  if (!folder.empty()) std::ofstream(fmt::format("{}/rank_{}", folder, rank)) << getpid() << "\n";
}

void loop(comm::Communicator& c, const Arguments& arguments, const std::string& attempt) {
  const auto end =
      std::chrono::steady_clock::now() + milliseconds(arguments.number("run_ms", 1000));
  double stop = 0;
  for (int step = 0; stop == 0; ++step) {
    comm::check_all_to_all(c, 50'001);
    comm::check_all_gather(c, 50'001);
    if (step == 3) say_running(arguments, c.rank());
    if (step == 5 && c.rank() == arguments.number("fail_rank", -1) &&
        attempt == arguments.text("fail_attempt", "0")) {
      throw InputError("bad token file");
    }
    stop = c.rank() == 0 && std::chrono::steady_clock::now() > end;
    c.all_reduce_sum({&stop, 1});
  }
}

void run(const std::string& mode, const Arguments& arguments) {
  const dist::Launch launch = dist::read_launch(dist::process_environment());
  dist::GroupOptions options;
  options.version = launch.rank == 1 ? arguments.text("version_of_rank_1", "1.0") : "1.0";
  options.distributed_timeout = milliseconds(arguments.number("distributed_timeout_ms", 60'000));
  options.watchdog.timeout = milliseconds(arguments.number("timeout_ms", 20'000));
  options.watchdog.interval = milliseconds(arguments.number("interval_ms", 1'000));
  options.watchdog.grace = milliseconds(arguments.number("grace_ms", 3'000));
  dist::Group group(launch, options);
  try {
    if (mode == "check") comm::check_communicator(group.communicator());
    if (mode == "loop") loop(group.communicator(), arguments, launch.attempt);
    // The last rank takes its time: the others must neither leave nor take it for dead.
    if (launch.rank == launch.world_size - 1) {
      std::this_thread::sleep_for(milliseconds(arguments.number("late_ms", 0)));
    }
    group.finish();
  } catch (...) {
    group.end_with(std::current_exception());
  }
  fmt::print("rank {} of {} done\n", launch.rank, launch.world_size);
}

}  // namespace
}  // namespace halfstep

int main(int argc, char** argv) {
  try {
    halfstep::run(argc > 1 ? argv[1] : "check", halfstep::Arguments(argc, argv));
    return 0;
  } catch (const halfstep::Error& error) {
    fmt::print(stderr, "halfstep: {}\n  {}\n", error.what(), error.hint());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "comm_probe: {}\n", error.what());
    return 1;
  }
}
