// Who this process is among the ranks of a run, read from what its launcher put into the
// environment: torchrun (or anything that sets RANK and WORLD_SIZE), Open MPI's and MPICH's mpirun,
// Slurm's srun. Without any of them: the only rank. Pure; UsageError for variables that are missing
// or disagree.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace halfstep::dist {

struct Launch {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks on this machine
  int local_world_size = 1;
  std::string address;  // where rank 0 (or the launcher) serves the store; empty for one rank
  uint16_t port = 0;
  std::string interface;  // GLOO_SOCKET_IFNAME: the network interface to use; empty: the one on the
                          // way to `address`
  bool launcher_serves_store = false;
  std::string attempt = "0";  // torchrun counts its restarts; each has keys of its own
};

// Value of an environment variable, nothing if it is unset or empty.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

Environment process_environment();

Launch read_launch(const Environment& environment);

}  // namespace halfstep::dist
