#include "halfstep/optim/arenas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halfstep/optim/memory_counter.h"
#include "halfstep/optim/test_support.h"

namespace halfstep::optim {
namespace {

using layout::MemoryClass;
using ::testing::HasSubstr;
using testing::make_arenas;
using testing::small_model;

TEST(Arenas, EveryClassTakesTheBytesThatWerePlanned) {
  const MemoryCounter& counter = MemoryCounter::instance();
  for (const auto& format : {testing::kBaseline, testing::kAllFp32, testing::kO2, testing::kO2Split,
                             testing::kO2NoMaster}) {
    const int64_t before = counter.live_bytes();
    const auto arenas =
        make_arenas(small_model(), {.format = format, .keep_fp32 = testing::is_norm});
    const MemoryReport& report = arenas->memory();
    EXPECT_EQ(counter.live_bytes() - before, arenas->layout().total_bytes());
    EXPECT_EQ(report.measured_bytes, arenas->layout().total_bytes());
    EXPECT_EQ(report.planned_bytes, arenas->layout().total_bytes());
    EXPECT_EQ(report.num_parameters, 131 * 24 + 32 * 24 + 32 + 7 + 200 * 24 + 24);
    int64_t sum = 0;
    for (const ClassMemory& row : report.classes) {
      const layout::Arena& arena = arenas->layout().arenas[row.arena];
      EXPECT_EQ(row.measured_bytes,
                arena.num_elements * arena.format.bytes_per_element(row.memory_class));
      EXPECT_DOUBLE_EQ(row.bytes_per_parameter,
                       static_cast<double>(row.measured_bytes) / arena.num_parameters);
      sum += row.measured_bytes;
    }
    EXPECT_EQ(sum, report.measured_bytes);
  }
}

// 2N′, 2N′, 4N′, 2N′, 2N′ for O2: measured, and per class.
TEST(Arenas, ByteLawsOfO2) {
  const auto arenas = make_arenas(small_model(), {.format = testing::kO2});
  const MemoryReport& report = arenas->memory();
  ASSERT_EQ(report.classes.size(), 5u);
  const std::vector<int64_t> bytes{2, 2, 4, 2, 2};
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(report.classes[i].measured_bytes, bytes[i] * report.num_elements);
  }
}

TEST(Arenas, ASavingThatDidNotAppearIsAnInternalError) {
  const auto arenas = make_arenas(small_model(), {.format = testing::kO2});
  MemoryReport report = arenas->memory();
  EXPECT_NO_THROW(check_memory(report));
  report.classes[3].measured_bytes *= 2;  // exp_avg in FP32 after all
  const std::string message = testing::message_of<InternalError>([&] { check_memory(report); });
  EXPECT_THAT(message, HasSubstr("promised saving did not appear: exp_avg (bf16)"));
}

TEST(Arenas, ParametersAreLeavesInsideTheWeightsArena) {
  const auto arenas = make_arenas(small_model(), {.format = testing::kO2});
  const auto* start = static_cast<const char*>(arenas->base(MemoryClass::kWeight, 0));
  for (int64_t p = 0; p < std::ssize(arenas->parameters()); ++p) {
    const at::Tensor& leaf = arenas->weights()[p];
    EXPECT_TRUE(leaf.is_leaf());
    EXPECT_TRUE(leaf.requires_grad());
    EXPECT_TRUE(leaf.is_contiguous());
    EXPECT_EQ(leaf.scalar_type(), at::kBFloat16);
    EXPECT_EQ(leaf.sizes(), at::IntArrayRef(arenas->parameters()[p].shape));
    EXPECT_EQ(leaf.data_ptr(), arenas->data(MemoryClass::kWeight, p));
    EXPECT_EQ(static_cast<const char*>(leaf.data_ptr()) - start,
              2 * arenas->layout().placement_of(p).offset);
  }
  // What is written through the arena is what the model reads.
  arenas->view(MemoryClass::kWeight, 3).fill_(1.5);
  EXPECT_TRUE(arenas->weights()[3].eq(1.5).all().item<bool>());
  EXPECT_TRUE(arenas->weights()[2].eq(0).all().item<bool>());
  // Writing one parameter must not invalidate what autograd saved of another.
  const auto version = arenas->weights()[2]._version();
  {
    const at::NoGradGuard no_grad;
    arenas->weights()[3].add_(1);
  }
  EXPECT_EQ(arenas->weights()[2]._version(), version);
}

TEST(Arenas, AllMemoryStartsAtZero) {
  const auto arenas =
      make_arenas(small_model(), {.format = testing::kO2NoMaster, .keep_fp32 = testing::is_norm});
  for (int64_t a = 0; a < 2; ++a) {
    for (const MemoryClass c : layout::kMemoryClasses) {
      const at::Tensor& flat = arenas->flat(c, a);
      if (!flat.defined()) continue;
      const auto* bytes = static_cast<const char*>(flat.const_data_ptr());
      EXPECT_TRUE(std::all_of(bytes, bytes + flat.nbytes(), [](char b) { return b == 0; }));
    }
  }
}

TEST(Arenas, ClassesThatDoNotExistHaveNoMemory) {
  const auto arenas = make_arenas(small_model(), {.format = testing::kAllFp32});
  EXPECT_EQ(arenas->data(MemoryClass::kMaster, 0), nullptr);
  EXPECT_FALSE(arenas->view(MemoryClass::kMaxExpAvgSq, 0).defined());
}

TEST(Arenas, OtherDevicesAreRefused) {
  auto parameters = small_model();
  auto layout = layout::build_layout(parameters, {});
  EXPECT_THAT(testing::message_of<UsageError>(
                  [&] { Arenas(parameters, layout, 0, at::Device(at::kCUDA, 0)); }),
              HasSubstr("'cuda:0'"));
}

TEST(Arenas, MemoryThatIsNotThereIsReportedAsSuch) {
  // 2⁵⁰ parameters: more than any address space, so malloc itself says no.
  std::vector<arch::Parameter> parameters{
      testing::parameter("huge", {int64_t{1} << 25, int64_t{1} << 25})};
  auto layout = layout::build_layout(parameters, {});
  const std::string message = testing::message_of<Error>([&] { Arenas(parameters, layout); });
  EXPECT_THAT(message, HasSubstr("out of memory: weights (bf16)"));
  EXPECT_THAT(message, HasSubstr("2251799813685248 bytes"));
  EXPECT_THAT(message, HasSubstr("--o2-optimizer"));
}

}  // namespace
}  // namespace halfstep::optim
