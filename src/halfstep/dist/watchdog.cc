#include "halfstep/dist/watchdog.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "halfstep/comm/communicator.h"

namespace halfstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr char kFailureKey[] = "failure";
constexpr char kToldKey[] = "told";          // ranks that know of the failure
constexpr char kFinishedKey[] = "finished";  // ranks that have called finish()
constexpr char kLeftKey[] = "left";          // ranks that have seen all finish

// A rank that has not beaten for so many intervals while somebody watched closely is gone.
constexpr int kMissedBeats = 5;
// How long the main thread may take to end by itself, in graces, once it is on its way out.
constexpr int kGracesToEnd = 3;

std::string beat_key(int rank) { return "beat/" + std::to_string(rank); }

std::string seconds(Clock::duration time) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(time).count());
}

}  // namespace

// What the two threads and the callers share. Held by the threads too, so that a messenger that the
// network holds up can be left behind.
struct Watchdog::Shared {
  Shared(std::unique_ptr<Store> connection, int rank, int size, WatchdogOptions options)
      : store(std::move(connection)), rank(rank), size(size), options(std::move(options)) {}

  int neighbour() const { return (rank + 1) % size; }
  void message();
  void judge();
  // Not for ever: some may be dead.
  void wait_until_all_know(std::unique_lock<std::mutex>& lock) {
    changed.wait_for(lock, kMissedBeats * options.interval,
                     [&] { return num_told >= size || messenger_gone; });
  }

  // Of the messenger alone.
  const std::unique_ptr<Store> store;
  bool told = false, counted_finished = false, counted_left = false;
  std::vector<int64_t> first_beats;  // of all ranks when the close watch began

  const int rank, size;
  const WatchdogOptions options;

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;                                // the destructor's wish
  bool messenger_gone = false, judge_gone = false;  // their threads have ended
  std::string cause;                                // the first failure, once known
  std::string failure_to_report;                    // for the messenger to bring to the store
  bool ending = false;                              // the main thread is on its way out, with:
  ExitCode code = ExitCode::kCommunication;
  bool watch_closely = false;  // somebody asks who is missing
  Clock::time_point watched_closely_since;
  bool finishing = false, leaving = false;
  int64_t num_told = 0, num_finished = 0, num_left = 0;
  int64_t neighbour_beats = 0;
  // How long ago the store last answered, and the neighbour last beat: in time in which we ran.
  Clock::duration store_silence{}, neighbour_silence{};
  Clock::time_point judged_at = Clock::now();

 private:
  // What a process that was stopped for so long is to say, empty if it was not. Under `mutex`.
  std::string if_stopped(Clock::duration passed) const;
  void exchange_beats();
  void exchange_news();
  void look_closely();
};

std::string Watchdog::Shared::if_stopped(Clock::duration passed) const {
  if (passed <= options.timeout) return {};
  return fmt::format("rank {} did not run for {} (stopped?): the others take it for dead", rank,
                     seconds(passed));
}

// One round of the messenger. Several trips to the store, so `mutex` is only held between them.
void Watchdog::Shared::exchange_beats() {
  store->add(beat_key(rank), 1);
  const int64_t beats = store->add(beat_key(neighbour()), 0);
  std::lock_guard lock(mutex);
  if (beats != neighbour_beats) neighbour_silence = {};
  neighbour_beats = beats;
}

void Watchdog::Shared::exchange_news() {
  std::string to_report, first;
  bool finished, left;
  {
    std::lock_guard lock(mutex);
    to_report = failure_to_report;
    finished = finishing;
    left = leaving;
  }
  if (!to_report.empty()) {
    first = store->set_if_absent(kFailureKey, to_report);
  } else if (store->exists(kFailureKey)) {
    first = store->get(kFailureKey, options.timeout);
  }
  int64_t told_now = 0, finished_now = 0, left_now = 0;
  if (!first.empty()) told_now = store->add(kToldKey, std::exchange(told, true) ? 0 : 1);
  if (finished)
    finished_now = store->add(kFinishedKey, std::exchange(counted_finished, true) ? 0 : 1);
  if (left) left_now = store->add(kLeftKey, std::exchange(counted_left, true) ? 0 : 1);

  std::lock_guard lock(mutex);
  if (cause.empty()) cause = first;
  num_told = told_now;
  num_finished = finished_now;
  num_left = left_now;
  store_silence = {};
  changed.notify_all();
}

// Compares everybody's heartbeat with what it was when the close watch began. The only step whose
// cost grows with the number of ranks; a run does it once, at its end.
void Watchdog::Shared::look_closely() {
  std::vector<int64_t> beats;
  for (int r = 0; r < size; ++r) beats.push_back(store->add(beat_key(r), 0));
  std::lock_guard lock(mutex);
  if (first_beats.empty()) {
    first_beats = beats;
    watched_closely_since = Clock::now();
    return;
  }
  const auto watched = Clock::now() - watched_closely_since;
  if (watched < kMissedBeats * options.interval || !failure_to_report.empty()) return;
  for (int r = 0; r < size; ++r) {
    if (beats[r] == first_beats[r]) {
      failure_to_report = beats[r] == 0
                              ? fmt::format("rank {} has not joined", r)
                              : fmt::format("rank {} failed: no sign of life for {} (killed?)", r,
                                            seconds(watched));
      return;
    }
  }
  watch_closely = false;  // all are there
  changed.notify_all();
}

void Watchdog::Shared::message() {
  try {
    for (;;) {
      exchange_beats();
      exchange_news();
      bool closely;
      {
        std::lock_guard lock(mutex);
        closely = watch_closely && cause.empty();
      }
      if (closely) look_closely();
      std::unique_lock lock(mutex);
      if (stop) break;
      // Somebody waits for news, or all can go on: do not let them wait for a whole interval.
      const bool hurry = finishing || ending || !failure_to_report.empty();
      changed.wait_for(lock, hurry ? options.interval / 4 : options.interval,
                       [&] { return stop || (!failure_to_report.empty() && cause.empty()); });
      if (stop) break;
    }
  } catch (const comm::CommError&) {
    std::lock_guard lock(mutex);
    // The others may be gone because we were: the judge, who would know, may not have run yet.
    if (cause.empty() && !leaving) cause = if_stopped(Clock::now() - judged_at);
    if (cause.empty() && !leaving) {
      cause = fmt::format("{} failed: the store that it served is gone (killed?)",
                          options.store_server);
    }
  }
  std::lock_guard lock(mutex);
  messenger_gone = true;
  changed.notify_all();
}

void Watchdog::Shared::judge() {
  const milliseconds tick = std::max(options.interval / 4, milliseconds(1));
  Clock::time_point known_since{};
  std::unique_lock lock(mutex);
  while (!stop) {
    changed.wait_for(lock, tick, [&] { return stop; });
    const Clock::time_point now = Clock::now();
    const Clock::duration passed = now - std::exchange(judged_at, now);
    // What is longer than a few ticks this process slept through; the others did not.
    const Clock::duration ran = std::min<Clock::duration>(passed, 4 * tick);
    store_silence += ran;
    neighbour_silence += neighbour_beats > 0 ? ran : Clock::duration();  // once it has joined
    if (std::string stopped = if_stopped(passed); !stopped.empty()) {
      cause = std::move(stopped);
      known_since = now - options.grace;  // nothing that the main thread had begun may go on
    } else if (cause.empty() && store_silence > options.timeout) {
      cause = fmt::format("no sign of life of {} for {}: the store that it serves does not answer",
                          options.store_server, seconds(options.timeout));
    } else if (cause.empty() && neighbour_silence > options.timeout && failure_to_report.empty()) {
      failure_to_report =
          fmt::format("no sign of life of rank {} for {}", neighbour(), seconds(options.timeout));
      changed.notify_all();
    }
    if (cause.empty() || leaving) continue;
    if (known_since == Clock::time_point()) known_since = now;
    changed.notify_all();
    if (now - known_since >= (ending ? kGracesToEnd : 1) * options.grace) {
      const ExitCode exit_code = code;
      const std::string text = cause;
      lock.unlock();
      options.end_process(exit_code, text);
      lock.lock();
      break;
    }
  }
  judge_gone = true;
  changed.notify_all();
}

void WatchdogOptions::print_and_exit(ExitCode code, const std::string& cause) {
  fmt::print(stderr, "halfstep: {}\n", cause);
  std::fflush(stderr);
  _exit(static_cast<int>(code));
}

// What is to happen within a timeout must fit into it.
WatchdogOptions scaled(WatchdogOptions options) {
  options.interval = std::min(options.interval, options.timeout / 10);
  options.grace = std::min(options.grace, options.timeout / 4);
  return options;
}

Watchdog::Watchdog(std::unique_ptr<Store> connection, int rank, int size, WatchdogOptions options)
    : shared_(
          std::make_shared<Shared>(std::move(connection), rank, size, scaled(std::move(options)))) {
  // Detached: each holds what it uses, and the destructor waits for them as long as it makes sense.
  std::thread([shared = shared_] { shared->message(); }).detach();
  std::thread([shared = shared_] { shared->judge(); }).detach();
}

Watchdog::~Watchdog() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, shared_->options.interval,
                            [&] { return shared_->messenger_gone && shared_->judge_gone; });
}

std::string Watchdog::report_failure(const std::string& what, ExitCode code) {
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  s.ending = true;
  s.code = code;
  if (s.failure_to_report.empty())
    s.failure_to_report = fmt::format("rank {} failed: {}", s.rank, what);
  s.changed.notify_all();
  s.wait_until_all_know(lock);
  return s.cause.empty() ? s.failure_to_report : s.cause;
}

std::string Watchdog::first_cause() {
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  s.ending = true;
  s.watch_closely = true;
  s.changed.notify_all();
  s.changed.wait_for(lock, s.options.timeout,
                     [&] { return !s.cause.empty() || !s.watch_closely || s.messenger_gone; });
  // Rank 0 may serve the store: the others must have heard before it goes.
  if (s.rank == 0 && !s.cause.empty()) s.wait_until_all_know(lock);
  return s.cause;
}

void Watchdog::finish() {
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  s.finishing = true;
  s.changed.notify_all();
  s.changed.wait(lock, [&] { return s.num_finished == s.size || !s.cause.empty(); });
  if (s.num_finished < s.size) throw comm::CommError(s.cause);
  // All are through. Rank 0 may serve the store: it leaves when the others have heard so.
  s.leaving = true;
  s.changed.notify_all();
  s.changed.wait_for(lock, s.options.timeout, [&] {
    return s.messenger_gone || s.num_left == s.size || (s.rank != 0 && s.num_left > 0);
  });
}

}  // namespace halfstep::dist
