#include "halfstep/checkpoint/slice.h"

#include <gtest/gtest.h>

#include <map>

namespace halfstep::checkpoint {
namespace {

Slice slice_of(std::vector<int64_t> shape, Box box, int64_t start, int64_t numel) {
  return {TensorKind::kExpAvg, "a.weight", std::move(shape), box, start, numel, Dtype::kBF16};
}

// Flat indices in the whole parameter, in the slice's order: the definition, element by element.
std::vector<int64_t> elements(const Slice& s) {
  std::vector<int64_t> out;
  const int64_t cols = whole_box(s.shape).cols();
  for (int64_t i = s.start; i < s.start + s.numel; ++i) {
    out.push_back((s.box.row0 + i / s.box.cols()) * cols + s.box.col0 + i % s.box.cols());
  }
  return out;
}

TEST(SliceName, LeavesOutWhatIsWhole) {
  EXPECT_EQ(format_slice_name(slice_of({4, 6}, {0, 4, 0, 6}, 0, 24)), "exp_avg/a.weight");
  EXPECT_EQ(format_slice_name(slice_of({4, 6}, {0, 4, 0, 6}, 0, 23)), "exp_avg/a.weight+0");
  EXPECT_EQ(format_slice_name(slice_of({4, 6}, {0, 4, 3, 6}, 0, 12)), "exp_avg/a.weight@0:4,3:6");
  EXPECT_EQ(format_slice_name(slice_of({4, 6}, {2, 4, 0, 6}, 5, 7)), "exp_avg/a.weight@2:4,0:6+5");
  EXPECT_EQ(format_slice_name(slice_of({24}, {0, 1, 6, 12}, 0, 6)), "exp_avg/a.weight@6:12");
  EXPECT_EQ(format_slice_name(slice_of({24}, {0, 1, 0, 24}, 6, 6)), "exp_avg/a.weight+6");
  EXPECT_EQ(format_slice_name(slice_of({2, 3, 4}, {1, 2, 0, 12}, 0, 12)),
            "exp_avg/a.weight@1:2,0:12");
}

TEST(SliceName, ParsesBack) {
  for (const TensorKind kind :
       {TensorKind::kWeight, TensorKind::kRemainder, TensorKind::kMaster, TensorKind::kExpAvg,
        TensorKind::kExpAvgSq, TensorKind::kMaxExpAvgSq}) {
    Slice slice = slice_of({4, 6}, {2, 4, 0, 6}, 5, 7);
    slice.kind = kind;
    const auto parsed = parse_slice_name(format_slice_name(slice));
    EXPECT_EQ(parsed, (SliceName{kind, "a.weight", {{2, 4}, {0, 6}}, 5}));
  }
  EXPECT_EQ(parse_slice_name("weight/w"), (SliceName{TensorKind::kWeight, "w", {}, {}}));
  EXPECT_EQ(parse_slice_name("weight/w@1:2"), (SliceName{TensorKind::kWeight, "w", {{1, 2}}, {}}));
  EXPECT_EQ(parse_slice_name("weight/w+9223372036854775807")->start, INT64_MAX);
}

TEST(SliceName, RefusesEverythingElse) {
  for (const char* text : {"",
                           "weight",
                           "weight/",
                           "gradient/w",
                           "weight/a/b",
                           "weight/w@",
                           "weight/w@1",
                           "weight/w@1:",
                           "weight/w@:2",
                           "weight/w@1:2,",
                           "weight/w@1:2,3",
                           "weight/w@1:2,3:4,5:6",
                           "weight/w@1:2@3:4",
                           "weight/w+",
                           "weight/w+-1",
                           "weight/w+1+2",
                           "weight/w+1@1:2",
                           "weight/w@ 1:2",
                           "weight/w@01:2",
                           "weight/w+9223372036854775808",
                           "weight/@1:2",
                           "Weight/w"}) {
    EXPECT_FALSE(parse_slice_name(text).has_value()) << text;
  }
}

TEST(Slice, FaultsAreNamed) {
  EXPECT_EQ(slice_fault(slice_of({4, 6}, {1, 3, 2, 6}, 3, 5)), "");
  EXPECT_EQ(slice_fault(slice_of({}, {0, 1, 0, 1}, 0, 1)), "");
  EXPECT_EQ(slice_fault(slice_of({0, 6}, {0, 0, 0, 6}, 0, 0)), "");
  for (const Box box : {Box{-1, 3, 0, 6}, Box{3, 1, 0, 6}, Box{0, 5, 0, 6}, Box{0, 4, -1, 6},
                        Box{0, 4, 6, 2}, Box{0, 4, 0, 7}}) {
    EXPECT_NE(slice_fault(slice_of({4, 6}, box, 0, 0)), "")
        << format_slice_name(slice_of({4, 6}, box, 0, 0));
  }
  EXPECT_NE(slice_fault(slice_of({4, 6}, {0, 4, 0, 6}, -1, 1)), "");
  EXPECT_NE(slice_fault(slice_of({4, 6}, {0, 4, 0, 6}, 0, 25)), "");
  EXPECT_NE(slice_fault(slice_of({4, 6}, {0, 4, 0, 6}, 24, 1)), "");
  EXPECT_NE(slice_fault(slice_of({4, 6}, {0, 4, 0, 6}, INT64_MAX, 1)), "");
  EXPECT_NE(slice_fault(slice_of({6}, {0, 0, 0, 6}, 0, 0)), "");  // a vector has one row
  EXPECT_NE(slice_fault(slice_of({-4}, {0, 1, 0, 0}, 0, 0)), "");
  EXPECT_NE(slice_fault(slice_of({int64_t{1} << 33, int64_t{1} << 33}, {0, 0, 0, 0}, 0, 0)), "");
  EXPECT_NE(slice_fault(slice_of({0, int64_t{1} << 33, int64_t{1} << 33}, {0, 0, 0, 0}, 0, 0)), "");
  for (const char* name : {"", "a@b", "a+b", "a/b"}) {
    Slice slice = slice_of({1}, {0, 1, 0, 1}, 0, 1);
    slice.name = name;
    EXPECT_NE(slice_fault(slice), "") << name;
  }
}

// Every pair of boxes and ranges of a 3 × 4 parameter from a set that has every kind of overlap,
// against the definition.
TEST(Slice, SharedRunsAreWhatBothHave) {
  std::vector<Slice> slices;
  for (const Box box : {Box{0, 3, 0, 4}, Box{0, 2, 0, 4}, Box{1, 3, 1, 3}, Box{0, 3, 0, 2},
                        Box{0, 3, 2, 4}, Box{2, 3, 3, 4}, Box{1, 2, 0, 4}, Box{1, 1, 0, 4}}) {
    for (int64_t start = 0; start < box.numel(); start += 2) {
      for (int64_t numel = 1; start + numel <= box.numel(); numel += 3) {
        slices.push_back(slice_of({3, 4}, box, start, numel));
      }
    }
  }
  for (const Slice& a : slices) {
    const auto a_elements = elements(a);
    std::map<int64_t, int64_t> place_in_a;
    for (size_t i = 0; i < a_elements.size(); ++i)
      place_in_a[a_elements[i]] = static_cast<int64_t>(i);
    for (const Slice& b : slices) {
      std::vector<std::pair<int64_t, int64_t>> expected, got;
      const auto b_elements = elements(b);
      for (size_t i = 0; i < b_elements.size(); ++i) {
        const auto it = place_in_a.find(b_elements[i]);
        if (it != place_in_a.end()) expected.emplace_back(it->second, static_cast<int64_t>(i));
      }
      for_each_shared_run(a, b, [&](const SharedRun& run) {
        EXPECT_GT(run.count, 0);
        for (int64_t i = 0; i < run.count; ++i)
          got.emplace_back(run.a_offset + i, run.b_offset + i);
        return true;
      });
      ASSERT_EQ(got, expected) << format_slice_name(a) << " " << format_slice_name(b);
      EXPECT_EQ(slices_overlap(a, b), !expected.empty());
    }
  }
}

// Contiguous shards of one box must not be walked row by row: 2^40 rows would take hours.
TEST(Slice, RangesOfTheSameBoxAreOneRun) {
  const int64_t rows = int64_t{1} << 40;
  const Slice whole = slice_of({rows, 4}, {0, rows, 0, 4}, 0, rows * 4);
  const Slice half = slice_of({rows, 4}, {0, rows, 0, 4}, rows * 2, rows * 2);
  int64_t calls = 0;
  for_each_shared_run(whole, half, [&](const SharedRun& run) {
    ++calls;
    EXPECT_EQ(run.a_offset, rows * 2);
    EXPECT_EQ(run.b_offset, 0);
    EXPECT_EQ(run.count, rows * 2);
    return true;
  });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace halfstep::checkpoint
