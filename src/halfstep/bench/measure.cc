#include "halfstep/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>

#include "halfstep/core/error.h"
#include "halfstep/core/stopwatch.h"

namespace halfstep::bench {
namespace {

double run_ms(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return milliseconds_since(begin);
}

// A line of /proc/self/status such as "VmHWM:   1234 kB", in bytes.
int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    int64_t kib = 0;
    if (name == field + ":" && status >> kib) return kib * 1024;
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  throw InternalError("bench: /proc/self/status has no " + field);
}

}  // namespace

std::vector<Timing> time_interleaved(std::span<const Case> cases, int repeats) {
  check(repeats > 0, "bench: no repeats");
  std::vector<std::vector<double>> times(cases.size());
  for (const Case& one : cases) one.run();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (size_t k = 0; k < cases.size(); ++k) times[k].push_back(run_ms(cases[k].run));
  }
  std::vector<Timing> timings;
  for (std::vector<double>& t : times) {
    std::sort(t.begin(), t.end());
    timings.push_back({.min_ms = t.front(), .median_ms = t[t.size() / 2]});
  }
  return timings;
}

int64_t peak_extra_bytes(const std::function<void()>& body) {
  // "5" resets the peak of the resident set to its present size.
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;
  check(clear.good(), "bench: cannot reset the peak of the resident memory");
  const int64_t before = status_bytes("VmHWM");
  body();
  return status_bytes("VmHWM") - before;
}

}  // namespace halfstep::bench
