// Ranks are watchdogs of one process here, with a twentieth of the real times and an end_process
// that takes notes. With processes, signals and cut links: tests/dist.
#include "halfstep/dist/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "halfstep/comm/communicator.h"

namespace halfstep::dist {
namespace {

using comm::CommError;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

constexpr milliseconds kTimeout{1000}, kInterval{50}, kGrace{150};
constexpr std::chrono::seconds kForEver{60};  // far more than anything here takes

// A store whose server can stop answering, or vanish.
struct Network {
  std::atomic<bool> down = false, lost = false;
};

class FragileStore final : public Store {
 public:
  FragileStore(std::unique_ptr<Store> store, Network& network)
      : store_(std::move(store)), network_(network) {}
  void set(const std::string& key, const std::string& value) override { get().set(key, value); }
  std::string get(const std::string& key, milliseconds timeout) override {
    return get().get(key, timeout);
  }
  bool exists(const std::string& key) override { return get().exists(key); }
  int64_t add(const std::string& key, int64_t delta) override { return get().add(key, delta); }
  std::string set_if_absent(const std::string& key, const std::string& value) override {
    return get().set_if_absent(key, value);
  }
  std::unique_ptr<Store> another() override {
    return std::make_unique<FragileStore>(store_->another(), network_);
  }
  c10d::Store& c10d_store() override { return store_->c10d_store(); }

 private:
  Store& get() {
    while (network_.down) std::this_thread::sleep_for(milliseconds(1));
    if (network_.lost) throw CommError("connection reset");
    return *store_;
  }
  const std::unique_ptr<Store> store_;
  Network& network_;
};

class Ranks {
 public:
  explicit Ranks(int size) : networks_(size), ends_(size), dogs_(size) {
    const auto store = in_process_store();
    for (int rank = 0; rank < size; ++rank) {
      auto connection = std::make_unique<FragileStore>(store->another(), networks_[rank]);
      dogs_[rank] = std::make_unique<Watchdog>(
          std::move(connection), rank, size,
          WatchdogOptions{.timeout = kTimeout,
                          .interval = kInterval,
                          .grace = kGrace,
                          .end_process = [this, rank](ExitCode code, const std::string& cause) {
                            ends_[rank].set_value({code, cause});
                          }});
    }
    for (auto& end : ends_) futures_.push_back(end.get_future());
  }
  ~Ranks() {
    for (Network& network : networks_) network.down = false;
  }

  Watchdog& operator[](int rank) { return *dogs_[rank]; }
  Network& network(int rank) { return networks_[rank]; }
  void kill(int rank) { dogs_[rank].reset(); }

  void expect_ended(int rank, const testing::Matcher<std::string>& cause,
                    ExitCode code = ExitCode::kCommunication) {
    ASSERT_EQ(futures_[rank].wait_for(kForEver), std::future_status::ready) << "rank " << rank;
    const auto [actual_code, actual_cause] = futures_[rank].get();
    EXPECT_EQ(actual_code, code);
    EXPECT_THAT(actual_cause, cause);
  }
  void expect_alive(int rank) {
    EXPECT_EQ(futures_[rank].wait_for(milliseconds(0)), std::future_status::timeout)
        << "rank " << rank;
  }

 private:
  using End = std::pair<ExitCode, std::string>;
  std::vector<Network> networks_;
  std::vector<std::promise<End>> ends_;
  std::vector<std::future<End>> futures_;
  std::vector<std::unique_ptr<Watchdog>> dogs_;
};

TEST(Watchdog, AReportedFailureEndsTheOthersWithItsCause) {
  Ranks ranks(3);
  EXPECT_EQ(ranks[1].report_failure("bad token file", ExitCode::kBadInput),
            "rank 1 failed: bad token file");
  ranks.expect_ended(0, "rank 1 failed: bad token file");
  ranks.expect_ended(2, "rank 1 failed: bad token file");
}

TEST(Watchdog, ARankThatReportedAndDoesNotEndIsEndedWithItsOwnCode) {
  Ranks ranks(2);
  ranks[1].report_failure("bad token file", ExitCode::kBadInput);
  ranks.expect_ended(1, "rank 1 failed: bad token file", ExitCode::kBadInput);
}

TEST(Watchdog, TheFirstFailureCounts) {
  Ranks ranks(3);
  ranks[1].report_failure("bad token file", ExitCode::kBadInput);
  EXPECT_EQ(ranks[2].report_failure("diverged", ExitCode::kDiverged),
            "rank 1 failed: bad token file");
  ranks.expect_ended(2, "rank 1 failed: bad token file", ExitCode::kDiverged);
}

TEST(Watchdog, ARankThatVanishesIsNamedToAll) {
  Ranks ranks(4);
  std::this_thread::sleep_for(3 * kInterval);  // all have been there
  ranks.kill(2);
  for (const int rank : {0, 1, 3}) ranks.expect_ended(rank, "no sign of life of rank 2 for 1 s");
}

TEST(Watchdog, ARankThatHasNotJoinedYetIsNotMissed) {
  const auto store = in_process_store();
  std::promise<std::string> end;
  auto ended = end.get_future();
  Watchdog alone(
      store->another(), 0, 2,
      {.timeout = kTimeout / 4,
       .interval = kInterval,
       .grace = kGrace,
       .end_process = [&](ExitCode, const std::string& cause) { end.set_value(cause); }});
  EXPECT_EQ(ended.wait_for(kTimeout), std::future_status::timeout);
}

TEST(Watchdog, ASlowRankIsWaitedForAndASilentOneIsNot) {
  Ranks ranks(3);
  std::this_thread::sleep_for(3 * kInterval);
  ranks.network(1).down = true;
  std::this_thread::sleep_for(kTimeout / 4);
  ranks.network(1).down = false;
  std::this_thread::sleep_for(2 * kTimeout);
  for (const int rank : {0, 1, 2}) ranks.expect_alive(rank);
  ranks.network(1).down = true;
  ranks.expect_ended(0, "no sign of life of rank 1 for 1 s");
  ranks.expect_ended(2, "no sign of life of rank 1 for 1 s");
  // The rank behind the cut cannot be told, and ends on its own.
  ranks.expect_ended(1,
                     "no sign of life of rank 0 for 1 s: the store that it serves does not answer");
}

TEST(Watchdog, ALostStoreIsTheFailureOfItsServer) {
  Ranks ranks(2);
  ranks.network(1).lost = true;
  ranks.expect_ended(1, StartsWith("rank 0 failed: the store that it served is gone"));
}

TEST(Watchdog, FirstCauseIsTheReportedOne) {
  Ranks ranks(3);
  auto cause = std::async(std::launch::async, [&] { return ranks[2].first_cause(); });
  ranks[1].report_failure("out of memory", ExitCode::kOutOfMemory);
  EXPECT_EQ(cause.get(), "rank 1 failed: out of memory");
}

TEST(Watchdog, FirstCauseFindsTheRankThatWasKilled) {
  Ranks ranks(4);
  std::this_thread::sleep_for(3 * kInterval);
  ranks.kill(1);
  EXPECT_THAT(ranks[3].first_cause(), StartsWith("rank 1 failed: no sign of life for "));
  ranks.expect_ended(0, StartsWith("rank 1 failed: no sign of life for "));
}

TEST(Watchdog, FirstCauseIsEmptyWhereNobodyIsMissing) {
  Ranks ranks(3);
  EXPECT_EQ(ranks[1].first_cause(), "");
  for (const int rank : {0, 1, 2}) ranks.expect_alive(rank);
}

TEST(Watchdog, ARankThatHasFinishedWaitsForTheOthersAndIsNotMissed) {
  Ranks ranks(3);
  std::vector<std::future<void>> finished;
  for (const int rank : {0, 1}) {
    finished.push_back(std::async(std::launch::async, [&, rank] { ranks[rank].finish(); }));
  }
  EXPECT_EQ(finished[0].wait_for(2 * kTimeout), std::future_status::timeout);
  ranks[2].finish();
  for (auto& end : finished) end.get();
  for (const int rank : {2, 1, 0}) {
    ranks.expect_alive(rank);
    ranks.kill(rank);
  }
}

TEST(Watchdog, AFailureWhileOthersHaveFinishedIsTheirErrorToo) {
  Ranks ranks(2);
  auto finished = std::async(std::launch::async, [&] { ranks[0].finish(); });
  ranks[1].report_failure("disk full", ExitCode::kInternal);
  EXPECT_THAT([&] { finished.get(); }, ThrowsMessage<CommError>("rank 1 failed: disk full"));
}

}  // namespace
}  // namespace halfstep::dist
