#include "halfstep/layout/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "halfstep/core/error.h"

namespace halfstep::layout {
namespace {

using testing::HasSubstr;

arch::Parameter parameter(std::string name, std::vector<int64_t> shape) {
  return {.name = std::move(name), .shape = std::move(shape)};
}

Layout build(const std::vector<arch::Parameter>& parameters, const LayoutOptions& options = {}) {
  return build_layout(parameters, options);
}

// The sizes of a list that divides nothing evenly.
std::vector<arch::Parameter> odd_parameters() {
  return {parameter("five", {5}), parameter("one", {1}), parameter("seven", {7}),
          parameter("large", {1'000'003})};
}

TEST(Layout, EveryParameterStartsAtAMultipleOf128AndNoneOverlap) {
  const Layout layout = build(odd_parameters());
  ASSERT_EQ(layout.arenas.size(), 1u);
  const Arena& arena = layout.arenas[0];
  const std::vector<int64_t> offsets{0, 128, 256, 384};
  ASSERT_EQ(arena.placements.size(), offsets.size());
  int64_t end = 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const Placement& p = arena.placements[i];
    EXPECT_EQ(p.parameter, static_cast<int64_t>(i));
    EXPECT_EQ(p.offset, offsets[i]);
    EXPECT_EQ(p.offset % kAlignment, 0);
    EXPECT_GE(p.offset, end);
    end = p.offset + p.numel;
    EXPECT_EQ(&layout.placement_of(i), &p);
    EXPECT_EQ(&layout.arena_of(i), &arena);
  }
  EXPECT_EQ(arena.num_parameters, 5 + 1 + 7 + 1'000'003);
  // 1 000 003 rounded up is 7813 blocks of 128.
  EXPECT_EQ(arena.num_elements, 3 * 128 + 7813 * 128);
  EXPECT_LE(end, arena.num_elements);
}

TEST(Layout, AlignedParametersAreAdjacentSoThatOneMatmulCanServeThem) {
  const Layout layout = build({parameter("q", {64, 32}), parameter("k", {16, 32})});
  EXPECT_EQ(layout.placement_of(1).offset, layout.placement_of(0).offset + 64 * 32);
  EXPECT_EQ(layout.arenas[0].num_elements, layout.arenas[0].num_parameters);
}

// The table of docs/interface.md §5 for one process: bytes per parameter of a model without
// padding.
TEST(Layout, BytesPerParameterOfEachConfiguration) {
  struct Row {
    const char* what;
    StorageFormat format;
    int64_t bytes;
  };
  constexpr Dtype f32 = Dtype::kF32, bf16 = Dtype::kBF16, ue = Dtype::kUE6M10;
  using enum MasterMode;
  const Row rows[] = {
      {"BF16, FP32 gradients, master and state", {}, 18},
      {"O2 optimizer", {.exp_avg = bf16, .exp_avg_sq = bf16}, 14},
      {"O2 gradient", {.gradient = bf16}, 16},
      {"both", {.gradient = bf16, .exp_avg = bf16, .exp_avg_sq = bf16}, 12},
      {"both, ue6m10", {.gradient = bf16, .exp_avg = bf16, .exp_avg_sq = ue}, 12},
      {"both, split",
       {.gradient = bf16, .master = kSplit, .exp_avg = bf16, .exp_avg_sq = bf16},
       10},
      {"both, no master",
       {.gradient = bf16, .master = kNone, .exp_avg = bf16, .exp_avg_sq = bf16},
       8},
      {"m bf16, v fp32", {.exp_avg = bf16}, 16},
      {"amsgrad adds a maximum", {.amsgrad = true}, 22},
      {"amsgrad, O2 optimizer", {.exp_avg = bf16, .exp_avg_sq = ue, .amsgrad = true}, 16},
      {"FP32 weights", {.weight = f32, .master = kNone}, 16},
  };
  constexpr int64_t kN = 3 * kAlignment;
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    const Layout layout = build({parameter("w", {kN})}, {.format = row.format});
    EXPECT_EQ(layout.total_bytes(), row.bytes * kN);
    int64_t sum = 0;
    for (const MemoryClass c : kMemoryClasses) sum += layout.bytes(c);
    EXPECT_EQ(sum, layout.total_bytes());
  }
}

// The byte laws of O2 hold per class, for N′ and not for N.
TEST(Layout, ClassBytesOfO2CountThePadding) {
  const StorageFormat o2{
      .gradient = Dtype::kBF16, .exp_avg = Dtype::kBF16, .exp_avg_sq = Dtype::kBF16};
  const Layout layout = build(odd_parameters(), {.format = o2});
  const int64_t n = layout.arenas[0].num_elements;
  EXPECT_EQ(layout.bytes(MemoryClass::kWeight), 2 * n);
  EXPECT_EQ(layout.bytes(MemoryClass::kGradient), 2 * n);
  EXPECT_EQ(layout.bytes(MemoryClass::kMaster), 4 * n);
  EXPECT_EQ(layout.bytes(MemoryClass::kExpAvg), 2 * n);
  EXPECT_EQ(layout.bytes(MemoryClass::kExpAvgSq), 2 * n);
  EXPECT_EQ(layout.bytes(MemoryClass::kMaxExpAvgSq), 0);
}

TEST(Layout, KeptFp32ParametersGetAnArenaOfTheirOwn) {
  const StorageFormat o2{.gradient = Dtype::kBF16,
                         .exp_avg = Dtype::kBF16,
                         .exp_avg_sq = Dtype::kUE6M10,
                         .amsgrad = true};
  const std::vector<arch::Parameter> parameters{
      parameter("a.weight", {8, 16}), parameter("a.norm", {100}), parameter("b.weight", {4, 32}),
      parameter("b.norm", {3})};
  const Layout layout = build(parameters, {.format = o2, .keep_fp32 = [](const arch::Parameter& p) {
                                             return p.name.find("norm") != std::string::npos;
                                           }});
  ASSERT_EQ(layout.arenas.size(), 2u);
  EXPECT_EQ(layout.arenas[0].format, o2);
  const StorageFormat expected{.weight = Dtype::kF32, .master = MasterMode::kNone, .amsgrad = true};
  EXPECT_EQ(layout.arenas[1].format, expected);
  EXPECT_EQ(layout.arenas[1].num_parameters, 103);
  EXPECT_EQ(layout.arenas[1].num_elements, 256);
  const std::vector<int64_t> arena_of{0, 1, 0, 1};
  const std::vector<int64_t> offsets{0, 0, 128, 128};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.locations[i].arena, arena_of[i]);
    EXPECT_EQ(layout.placement_of(i).offset, offsets[i]);
    EXPECT_EQ(layout.placement_of(i).parameter, i);
    EXPECT_EQ(layout.placement_of(i).numel, parameters[i].numel());
  }
  // 2 + 2 + 4 + 2 + 2 + 2 bytes in common, 4 + 4 + 0 + 4 + 4 + 4 for the kept ones.
  EXPECT_EQ(layout.total_bytes(), 256 * 14 + 256 * 20);
}

TEST(Layout, WithoutParametersThereIsAnEmptyArena) {
  const Layout layout = build({});
  ASSERT_EQ(layout.arenas.size(), 1u);
  EXPECT_EQ(layout.total_bytes(), 0);
}

// Stored as 32 bits, the first would be −1 818 716 928 elements.
TEST(Layout, SizesAbove32BitsAreExact) {
  const Layout layout =
      build({parameter("embedding", {19'345'706, 128}), parameter("head", {1 << 20, 1 << 14})});
  EXPECT_EQ(layout.placement_of(0).numel, 2'476'250'368);
  EXPECT_EQ(layout.placement_of(1).offset, 2'476'250'368);
  EXPECT_EQ(layout.arenas[0].num_elements, 2'476'250'368 + (int64_t{1} << 34));
  EXPECT_EQ(layout.total_bytes(), 18 * (2'476'250'368 + (int64_t{1} << 34)));
}

template <typename Body>
std::string usage_error(Body&& body) {
  try {
    body();
  } catch (const UsageError& e) {
    return std::string(e.what()) + " | " + e.hint();
  }
  return "no error";
}

TEST(Layout, RefusesWhatCannotBePlaced) {
  EXPECT_THAT(usage_error([] {
                build({parameter("w", {2}), parameter("w", {2})});
              }),
              HasSubstr("'w' is listed twice"));
  EXPECT_THAT(usage_error([] { build({parameter("w", {3, 0})}); }), HasSubstr("[3, 0]"));
  EXPECT_THAT(usage_error([] { build({parameter("w", {-3})}); }), HasSubstr("positive"));
  EXPECT_THAT(usage_error([] { build({parameter("w", {})}); }), HasSubstr("one or two"));
  EXPECT_THAT(usage_error([] { build({parameter("w", {2, 2, 2})}); }), HasSubstr("one or two"));
  EXPECT_THAT(usage_error([] {
                build({parameter("w", {int64_t{1} << 32, int64_t{1} << 32})});
              }),
              HasSubstr("64 bits"));
  EXPECT_THAT(usage_error([] {
                const int64_t half = int64_t{1} << 58;
                build({parameter("a", {half}), parameter("b", {half})});
              }),
              HasSubstr("the model has more bytes"));
  EXPECT_THAT(
      usage_error([] {  // one in each arena
        const int64_t half = int64_t{1} << 58;
        build({parameter("a", {half}), parameter("b", {half})},
              {.format = {}, .keep_fp32 = [](const arch::Parameter& p) { return p.name == "b"; }});
      }),
      HasSubstr("the model has more bytes"));
}

TEST(Layout, RefusesFormatsThatDoNotExist) {
  const auto with = [](StorageFormat format) {
    return usage_error([&] { build({parameter("w", {2})}, {.format = format}); });
  };
  EXPECT_THAT(with({.weight = Dtype::kF32}), HasSubstr("--master none"));
  EXPECT_THAT(with({.weight = Dtype::kUE6M10}), HasSubstr("weights cannot be ue6m10"));
  EXPECT_THAT(with({.gradient = Dtype::kI16}), HasSubstr("gradients cannot be int16"));
  EXPECT_THAT(with({.exp_avg = Dtype::kUE6M10}), HasSubstr("exp_avg cannot be ue6m10"));
  EXPECT_THAT(with({.exp_avg_sq = Dtype::kI16}), HasSubstr("bf16, ue6m10, fp32"));
}

}  // namespace
}  // namespace halfstep::layout
