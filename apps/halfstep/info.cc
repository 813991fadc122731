// `halfstep info`: version, torch, devices, and which kernels would run here and why.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "halfstep/core/thread_pool.h"
#include "halfstep/kernels/implementation.h"

namespace halfstep::apps {
namespace {

void print_info(bool json) {
  nlohmann::ordered_json info{{"version", HALFSTEP_VERSION},
                              {"torch", HALFSTEP_TORCH_VERSION},
                              {"devices", {"cpu"}},
                              {"cpus", available_cpus()},
                              {"kernels", kernels::chosen_implementation()},
                              {"implementations", nlohmann::ordered_json::array()}};
  const auto implementations = kernels::implementations();
  for (const auto& implementation : implementations) {
    info["implementations"].push_back({{"name", implementation.name},
                                       {"supported", implementation.supported},
                                       {"reason", implementation.reason}});
  }
  if (json) {
    fmt::print("{}\n", info.dump(2));
    return;
  }
  fmt::print("halfstep {} (torch {})\ndevices   cpu, {} threads\n", HALFSTEP_VERSION,
             HALFSTEP_TORCH_VERSION, available_cpus());
  for (const auto& implementation : implementations) {
    const bool chosen = implementation.name == kernels::chosen_implementation();
    fmt::print("kernels   {:<10} {}\n", implementation.name,
               chosen                     ? "in use"
               : implementation.supported ? "supported"
                                          : implementation.reason);
  }
}

}  // namespace

void add_info(CLI::App& app) {
  auto* command =
      app.add_subcommand("info", "version, torch, devices, kernels available and chosen");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "one JSON document on stdout");
  command->callback([json] { print_info(*json); });
}

}  // namespace halfstep::apps
