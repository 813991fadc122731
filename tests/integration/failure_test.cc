// Exit codes of what libraries throw (docs/interface.md §4). A run cannot be made to fail inside
// torch at will, so the exceptions are made here.
#include "failure.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>

namespace halfstep::apps {
namespace {

using ::testing::HasSubstr;

template <typename E>
Failure of(const E& error) {
  return describe_failure(std::make_exception_ptr(error));
}

c10::Error torch_error(const std::string& text) { return {{__func__, __FILE__, 1}, text}; }

TEST(Failure, OurErrorsKeepTheirCodeAndHint) {
  const Failure failure = of(InputError("cannot read x", "check x"));
  EXPECT_EQ(failure.code, ExitCode::kBadInput);
  EXPECT_EQ(failure.what, "cannot read x");
  EXPECT_EQ(failure.hint, "check x");
  EXPECT_THAT(of(UsageError("--x")).hint, HasSubstr("--help"));
  EXPECT_THAT(of(InputError("x is damaged")).hint, HasSubstr("inspect"));
}

TEST(Failure, EveryWayToRunOutOfMemoryIsOne) {
  for (const Failure& failure :
       {of(std::bad_alloc()), of(std::length_error("vector::reserve")),
        of(c10::OutOfMemoryError({__func__, __FILE__, 1}, "no room")),
        of(torch_error("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
                       "allocate memory: you tried to allocate 17 bytes.\nframe #0: f")),
        of(torch_error("Storage size calculation overflowed with sizes=[1, 2]")),
        of(std::runtime_error("could not create a memory object"))}) {
    EXPECT_EQ(failure.code, ExitCode::kOutOfMemory) << failure.what;
    EXPECT_THAT(failure.hint, HasSubstr("--micro-batch-size"));
    EXPECT_EQ(failure.what.find('\n'), std::string::npos);
  }
}

TEST(Failure, AnythingElseInALibraryIsOurFaultInOneLine) {
  const Failure torch = of(torch_error("mat1 and mat2 shapes cannot be multiplied\nframe #0: f"));
  EXPECT_EQ(torch.code, ExitCode::kInternal);
  EXPECT_EQ(torch.what, "torch: mat1 and mat2 shapes cannot be multiplied");
  EXPECT_THAT(torch.hint, HasSubstr("please report it"));
  EXPECT_EQ(of(std::runtime_error("odd")).code, ExitCode::kInternal);
}

TEST(Failure, FileSystemErrorsAreBadInput) {
  EXPECT_EQ(of(std::filesystem::filesystem_error("cannot copy", std::error_code())).code,
            ExitCode::kBadInput);
}

}  // namespace
}  // namespace halfstep::apps
