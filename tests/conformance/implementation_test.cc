// Which implementations there are: none may vanish from the build, and which ones must run here is
// asked of the CPU, not of the library that the kernels are built with.
#include "halfstep/kernels/implementation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "halfstep/core/error.h"
#include "implementations_under_test.h"

namespace halfstep::conformance {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool cpu_runs(const std::string& name) {
  if (name == "avx512") {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd");
  }
  if (name == "avx2") {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("f16c");
  }
  if (name == "sse4") {
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("aes") &&
           __builtin_cpu_supports("pclmul");
  }
  return name == "reference";
}

TEST(Implementations, AllAreInTheBuildFastestFirst) {
  std::vector<std::string> names;
  for (const auto& info : kernels::implementations()) names.push_back(info.name);
  EXPECT_THAT(names, ElementsAre("avx512", "avx2", "sse4", "reference"));
}

TEST(Implementations, SupportIsWhatTheCpuSays) {
  for (const auto& info : kernels::implementations()) {
    EXPECT_EQ(info.supported, cpu_runs(info.name)) << info.name;
    EXPECT_EQ(info.reason.empty(), info.supported) << info.name << ": " << info.reason;
  }
}

TEST(Implementations, ForcingAnUnknownOrUnsupportedOneNamesTheChoices) {
  std::vector<std::string> impossible{"avx1024"};
  for (const auto& info : kernels::implementations()) {
    if (!info.supported) impossible.push_back(info.name);
  }
  for (const std::string& name : impossible) {
    const std::string before(kernels::chosen_implementation());
    try {
      kernels::force_implementation(name);
      ADD_FAILURE() << name << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(name), HasSubstr("reference")));
    }
    EXPECT_EQ(kernels::chosen_implementation(), before);
  }
}

// HALFSTEP_KERNELS is read at first use, so each value needs a process: this program again, running
// the test below.
int run_self(const std::string& kernels, const std::string& expected) {
  const std::string command = "HALFSTEP_KERNELS=" + kernels + " EXPECTED_KERNELS=" + expected +
                              " /proc/" + std::to_string(getpid()) +
                              "/exe --gtest_filter=Environment.Child > /dev/null 2>&1";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Environment, Child) {
  const char* expected = std::getenv("EXPECTED_KERNELS");
  if (!expected) return;  // run by itself: there is nothing to look at
  EXPECT_EQ(kernels::chosen_implementation(), expected);
}

TEST(Environment, ChoosesTheImplementation) {
  std::string fastest;
  for (const auto& info : kernels::implementations()) {
    if (!info.supported) continue;
    if (fastest.empty()) fastest = info.name;
    EXPECT_EQ(run_self(info.name, info.name), 0) << info.name;
  }
  EXPECT_EQ(run_self("", fastest), 0);
  EXPECT_NE(run_self("reference", fastest), 0) << "the child sees no difference";
  EXPECT_NE(run_self("avx1024", fastest), 0) << "an unknown name was accepted";
}

}  // namespace
}  // namespace halfstep::conformance
