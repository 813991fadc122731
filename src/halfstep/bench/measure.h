// Measuring code of `halfstep bench`: interleaved timing and the memory that a call needs beyond
// what is there. No kernels and no torch here, so that it can be tested by itself.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace halfstep::bench {

struct Case {
  std::string name;
  std::function<void()> run;
};

struct Timing {
  double min_ms = 0, median_ms = 0;
};

// Times every case `repeats` times, after one run each that does not count. Interleaved: each
// repeat runs every case once, so that a machine that slows down for a while slows all of them, and
// ratios stay meaningful.
std::vector<Timing> time_interleaved(std::span<const Case> cases, int repeats);

// The resident memory, in bytes, that `body` used at its peak beyond what was resident before.
int64_t peak_extra_bytes(const std::function<void()>& body);

}  // namespace halfstep::bench
