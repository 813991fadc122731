#include "halfstep/dist/launch.h"

#include <fmt/core.h>

#include <charconv>
#include <cstdlib>
#include <limits>

#include "halfstep/core/error.h"

namespace halfstep::dist {
namespace {

// The names that a launcher uses; nullptr where it has none.
struct Names {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

constexpr Names kTorch{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
// mpirun under Slurm starts its own daemons by srun, whose variables the ranks inherit; so Slurm's
// own come last.
constexpr Names kManagers[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
};
constexpr uint16_t kDefaultPort = 29500;  // torch's

class Reader {
 public:
  explicit Reader(const Environment& environment) : get_(environment) {}

  Launch read() const {
    const Names* manager = find_manager();
    Launch launch;
    if (has(kTorch.rank) || has(kTorch.world_size)) {
      launch = ranks(kTorch);
      if (manager && !has("TORCHELASTIC_RUN_ID")) check_same(launch, *manager);
    } else if (manager) {
      launch = ranks(*manager);
    } else {
      return {};
    }
    if (launch.world_size == 1) return launch;
    const bool is_slurm = manager && manager->launcher == std::string("Slurm");
    read_address(launch, is_slurm);
    launch.interface = get_("GLOO_SOCKET_IFNAME").value_or("");
    launch.launcher_serves_store = get_("TORCHELASTIC_USE_AGENT_STORE") == "True";
    launch.attempt = get_("TORCHELASTIC_RESTART_COUNT").value_or("0");
    return launch;
  }

 private:
  bool has(const char* name) const { return name && get_(name).has_value(); }

  const Names* find_manager() const {
    for (const Names& names : kManagers) {
      if (has(names.rank) && has(names.world_size) && !outside_of_a_step(names)) return &names;
    }
    return nullptr;
  }

  // A batch script that calls the program without srun has Slurm's variables of the allocation, but
  // is one process: only srun's steps have an id (the script's own is a huge number).
  bool outside_of_a_step(const Names& names) const {
    if (names.launcher != std::string("Slurm")) return false;
    for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"}) {
      if (has(name) && number(name, 0, std::numeric_limits<uint32_t>::max()) < 0xfffffff0)
        return false;
    }
    return true;
  }

  int64_t number(const char* name, int64_t least, int64_t most) const {
    const std::string text = get_(name).value();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
      throw UsageError(
          fmt::format("environment variable {} is '{}', expected an integer from {} to {}", name,
                      text, least, most));
    }
    return value;
  }

  int integer(const char* name, int64_t least, int64_t most) const {
    return static_cast<int>(number(name, least, most));
  }

  Launch ranks(const Names& names) const {
    for (const char* needed : {names.rank, names.world_size}) {
      if (!has(needed)) {
        throw UsageError(fmt::format("{} is set but {} is not",
                                     needed == names.rank ? names.world_size : names.rank, needed),
                         "a launcher sets both; for a single process unset both");
      }
    }
    constexpr int kMost = 1 << 20;
    Launch launch;
    launch.world_size = integer(names.world_size, 1, kMost);
    launch.rank = integer(names.rank, 0, launch.world_size - 1);
    launch.local_world_size = 0;  // not known yet
    if (has(names.local_world_size)) {
      launch.local_world_size = integer(names.local_world_size, 1, launch.world_size);
    }
    if (has(names.local_rank)) {
      const int ranks_here = launch.local_world_size ? launch.local_world_size : launch.world_size;
      launch.local_rank = integer(names.local_rank, 0, ranks_here - 1);
      if (launch.local_rank > launch.rank) {
        throw UsageError(fmt::format("{}={} is greater than {}={}", names.local_rank,
                                     launch.local_rank, names.rank, launch.rank));
      }
    }
    if (launch.world_size == 1) launch.local_world_size = 1;
    return launch;
  }

  // RANK exported into the jobs of another launcher makes every process the same rank.
  void check_same(const Launch& launch, const Names& manager) const {
    const Launch other = ranks(manager);
    if (other.rank == launch.rank && other.world_size == launch.world_size) return;
    throw UsageError(fmt::format("RANK={} WORLD_SIZE={} but {} says {}={} {}={}", launch.rank,
                                 launch.world_size, manager.launcher, manager.rank, other.rank,
                                 manager.world_size, other.world_size),
                     "unset RANK and WORLD_SIZE, or set them per process");
  }

  void read_address(Launch& launch, bool is_slurm) const {
    const bool one_slurm_node =
        is_slurm && (get_("SLURM_STEP_NUM_NODES") == "1" ||
                     (!has("SLURM_STEP_NUM_NODES") && get_("SLURM_NNODES") == "1"));
    if (one_slurm_node && launch.local_world_size == 0) launch.local_world_size = launch.world_size;
    if (has("MASTER_ADDR")) {
      launch.address = *get_("MASTER_ADDR");
    } else if (launch.local_world_size == launch.world_size) {
      launch.address = "127.0.0.1";
    } else if (is_slurm && has("SLURM_LAUNCH_NODE_IPADDR")) {
      launch.address = *get_("SLURM_LAUNCH_NODE_IPADDR");
    } else {
      throw UsageError(
          fmt::format("rank {} of {}: MASTER_ADDR is not set", launch.rank, launch.world_size),
          "set it to the address of rank 0's machine as the others see it");
    }
    launch.port = port(is_slurm);
    if (launch.local_world_size > 0) return;
    // Nobody said how many ranks are here. With a loopback address all are.
    const bool all_here = launch.address == "localhost" || launch.address.starts_with("127.") ||
                          launch.address == "::1";
    launch.local_world_size = all_here ? launch.world_size : launch.local_rank + 1;
    if (all_here && !has("LOCAL_RANK")) launch.local_rank = launch.rank;
  }

  uint16_t port(bool is_slurm) const {
    if (has("MASTER_PORT")) return static_cast<uint16_t>(number("MASTER_PORT", 1, 65535));
    // Two jobs on one machine must not meet: below the ports that the system hands out itself.
    if (is_slurm && has("SLURM_JOB_ID")) {
      const int64_t step = has("SLURM_STEP_ID") ? number("SLURM_STEP_ID", 0, 0xffffffff) : 0;
      constexpr int64_t kMostJobs = std::numeric_limits<uint32_t>::max();
      return static_cast<uint16_t>(20000 +
                                   (number("SLURM_JOB_ID", 0, kMostJobs) * 16 + step) % 12000);
    }
    return kDefaultPort;
  }

  const Environment& get_;
};

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

Launch read_launch(const Environment& environment) { return Reader(environment).read(); }

}  // namespace halfstep::dist
