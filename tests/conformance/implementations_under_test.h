// The implementations that a conformance test runs for: all that this machine supports, from the
// kernel table, the reference itself excepted.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "halfstep/kernels/cpu/path_counters.h"
#include "halfstep/kernels/implementation.h"

namespace halfstep::conformance {

inline std::vector<std::string> implementations_under_test() {
  std::vector<std::string> names;
  for (const auto& info : kernels::implementations()) {
    if (info.supported && info.name != "reference") names.push_back(info.name);
  }
  return names;
}

// Seeds to run: 1, more in the slow form of the test.
inline uint64_t num_seeds() {
  const char* seeds = std::getenv("HALFSTEP_CONFORMANCE_SEEDS");
  return seeds ? std::strtoull(seeds, nullptr, 10) : 1;
}

// Runs body() with an implementation forced and the path counters at zero.
template <typename Body>
void with_implementation(const std::string& name, Body&& body) {
  kernels::force_implementation(name);
  ASSERT_EQ(kernels::chosen_implementation(), name);
  kernels::path_counters.reset();
  body();
  if (name == "reference") {
    ASSERT_EQ(kernels::path_counters.adamw_template + kernels::path_counters.adamw_tile +
                  kernels::path_counters.vector_op,
              0)
        << "a SIMD path ran for the reference";
  }
}

}  // namespace halfstep::conformance
