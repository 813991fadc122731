#include "halfstep/dist/rendezvous.h"

#include <fmt/core.h>

#include <csignal>
#include <utility>

#include "halfstep/comm/single_rank.h"
#include "halfstep/dist/c10d_communicator.h"
#include "halfstep/dist/local_address.h"

namespace halfstep::dist {
namespace {

void check_version(Store& store, int rank, const std::string& version) {
  const std::string first = store.set_if_absent("version", version);
  if (first == version) return;
  throw UsageError(
      fmt::format("rank {} runs halfstep {}, another rank runs {}", rank, version, first),
      "install the same version on every machine");
}

}  // namespace

Group::Group(const Launch& launch, GroupOptions options) {
  if (launch.world_size == 1) {
    communicator_ = std::make_unique<comm::SingleRank>();
    return;
  }
  // Writing to a rank that is gone is an error of the call; the signal would end this process first,
  // without a word.
  std::signal(SIGPIPE, SIG_IGN);
  store_ = connect_store({.host = launch.address,
                          .port = launch.port,
                          .serve = launch.rank == 0 && !launch.launcher_serves_store},
                         fmt::format("halfstep/{}", launch.attempt), options.distributed_timeout);
  if (launch.launcher_serves_store) options.watchdog.store_server = "the launcher";
  watchdog_ = std::make_unique<Watchdog>(store_->another(), launch.rank, launch.world_size,
                                         options.watchdog);
  try {
    join(launch, options);
  } catch (...) {
    end_with(std::current_exception());
  }
}

void Group::join(const Launch& launch, const GroupOptions& options) {
  check_version(*store_, launch.rank, options.version);
  GlooOptions gloo{.interface = launch.interface, .timeout = options.distributed_timeout};
  if (gloo.interface.empty()) {
    gloo.address = local_address_towards(launch.address, launch.port,
                                         launch.local_world_size < launch.world_size);
  }
  communicator_ = connect_gloo(*store_, launch.rank, launch.world_size, gloo);
}

Group::~Group() = default;

void Group::finish() {
  if (watchdog_) watchdog_->finish();
}

void Group::end_with(const std::exception_ptr& error) {
  if (!watchdog_) std::rethrow_exception(error);
  try {
    std::rethrow_exception(error);
  } catch (const comm::CommError& failed) {
    std::string cause = watchdog_->first_cause();
    if (cause.empty()) cause = watchdog_->report_failure(failed.what(), failed.code());
    throw comm::CommError(cause, failed.hint());
  } catch (const Error& failed) {
    watchdog_->report_failure(failed.what(), failed.code());
    throw;
  } catch (const std::exception& failed) {
    watchdog_->report_failure(failed.what(), ExitCode::kInternal);
    throw;
  }
}

}  // namespace halfstep::dist
