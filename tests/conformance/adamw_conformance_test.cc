// Every implementation's AdamW step against the reference: all formats × data classes × sizes ×
// alignments × noise addresses × cuts, 0 differing bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "guarded_array.h"
#include "halfstep/kernels/adamw.h"
#include "halfstep/kernels/cpu/adamw_templates.h"
#include "halfstep/kernels/implementation.h"
#include "implementations_under_test.h"
#include "test_data.h"

namespace halfstep::conformance {
namespace {

using kernels::AdamwFormat;
using kernels::AdamwScalars;
using kernels::AdamwSlice;

constexpr uint64_t kSeed = 0x123456789ABCDEF0u;
constexpr uint64_t kNameHash = 0xFEDCBA9876543210u;
constexpr int64_t kStep = 0x123456789;  // above the 28 bits that enter the noise address

// Every format that adamw_step accepts, each once: a rounding without effect is left at nearest.
std::vector<AdamwFormat> all_formats() {
  struct Stored {
    Dtype dtype;
    Rounding rounding;
  };
  constexpr auto kNearest = Rounding::kNearest, kStochastic = Rounding::kStochastic;
  constexpr Stored kExpAvg[] = {
      {Dtype::kF32, kNearest}, {Dtype::kBF16, kNearest}, {Dtype::kBF16, kStochastic}};
  constexpr Stored kExpAvgSq[] = {{Dtype::kF32, kNearest},
                                  {Dtype::kBF16, kNearest},
                                  {Dtype::kBF16, kStochastic},
                                  {Dtype::kUE6M10, kNearest},
                                  {Dtype::kUE6M10, kStochastic}};
  constexpr std::pair<Dtype, MasterMode> kWeights[] = {{Dtype::kBF16, MasterMode::kFp32},
                                                       {Dtype::kBF16, MasterMode::kSplit},
                                                       {Dtype::kBF16, MasterMode::kNone},
                                                       {Dtype::kF32, MasterMode::kNone}};
  std::vector<AdamwFormat> formats;
  for (const auto& [weight, master] : kWeights) {
    for (Dtype grad : {Dtype::kF32, Dtype::kBF16}) {
      for (const Stored& m : kExpAvg) {
        for (const Stored& v : kExpAvgSq) {
          for (bool amsgrad : {false, true}) {
            formats.push_back(
                {weight, master, grad, m.dtype, v.dtype, m.rounding, v.rounding, amsgrad});
          }
        }
      }
    }
  }
  return formats;
}

// For example bf16_split_gfp32_mbf16n_vue6m10s.
std::string name_of(const AdamwFormat& f) {
  const auto state = [](Dtype dtype, Rounding rounding) {
    const char* suffix = dtype == Dtype::kF32 ? "" : rounding == Rounding::kNearest ? "n" : "s";
    return std::string(dtype_name(dtype)) + suffix;
  };
  return std::string(dtype_name(f.weight)) + "_" + std::string(master_name(f.master)) + "_g" +
         std::string(dtype_name(f.grad)) + "_m" + state(f.exp_avg, f.exp_avg_rounding) + "_v" +
         state(f.exp_avg_sq, f.exp_avg_sq_rounding) + (f.amsgrad ? "_amsgrad" : "");
}

// The arrays of one slice: elements [first, first + n) of a parameter, or a rectangle of it.
struct SliceArrays {
  GuardedArray weight, master, grad, exp_avg, exp_avg_sq, max_exp_avg_sq;

  SliceArrays(const AdamwFormat& f, int64_t n, int64_t misalignment)
      : weight(f.weight, n, misalignment),
        master(f.master == MasterMode::kSplit ? Dtype::kI16 : Dtype::kF32, n, misalignment * 3 % 7),
        grad(f.grad, n, misalignment * 5 % 11),
        exp_avg(f.exp_avg, n, misalignment * 7 % 13),
        exp_avg_sq(f.exp_avg_sq, n, misalignment * 9 % 8),
        max_exp_avg_sq(f.exp_avg_sq, n, misalignment * 11 % 5) {}

  // `element(i)` is the tensor's element that slice element i stands for.
  template <typename Element>
  void fill(DataClass data, uint64_t seed, Element&& element) {
    const auto fill_one = [&](GuardedArray& array, Role role, uint64_t salt) {
      for (int64_t i = 0; i < array.size(); ++i) {
        array.set(i, test_value(data, role, array.dtype(), seed ^ salt, element(i)));
      }
    };
    fill_one(weight, Role::kWeight, 0);
    fill_one(master, master.dtype() == Dtype::kI16 ? Role::kRemainder : Role::kWeight, 0);
    fill_one(grad, Role::kGrad, 0);
    fill_one(exp_avg, Role::kExpAvg, 0);
    fill_one(exp_avg_sq, Role::kExpAvgSq, 0);
    fill_one(max_exp_avg_sq, Role::kExpAvgSq, 0xA115);
  }

  // Makes a slice work on these arrays.
  void point(AdamwSlice& slice, const AdamwFormat& f) {
    slice.weight = weight.data();
    slice.master = f.master == MasterMode::kNone ? nullptr : master.data();
    slice.grad = grad.data();
    slice.exp_avg = exp_avg.data();
    slice.exp_avg_sq = exp_avg_sq.data();
    slice.max_exp_avg_sq = f.amsgrad ? max_exp_avg_sq.data() : nullptr;
  }
  AdamwSlice slice(const AdamwFormat& f, const AdamwScalars& scalars) {
    AdamwSlice slice{.cols = weight.size(),
                     .global_cols = weight.size(),
                     .name_hash = kNameHash,
                     .t = kStep,
                     .scalars = &scalars};
    point(slice, f);
    return slice;
  }
};

::testing::AssertionResult same_arrays(const SliceArrays& a, const SliceArrays& b) {
  const std::pair<const char*, GuardedArray SliceArrays::*> kArrays[] = {
      {"weight", &SliceArrays::weight},         {"master", &SliceArrays::master},
      {"gradient", &SliceArrays::grad},         {"exp_avg", &SliceArrays::exp_avg},
      {"exp_avg_sq", &SliceArrays::exp_avg_sq}, {"max_exp_avg_sq", &SliceArrays::max_exp_avg_sq}};
  for (const auto& [name, array] : kArrays) {
    if (auto result = same(name, a.*array, b.*array); !result) return result;
  }
  return ::testing::AssertionSuccess();
}

// Two sets: a usual step, and (odd numbers) one with a negative gradient scale and a large decay.
AdamwScalars scalars_of(uint64_t seed) {
  const kernels::AdamwHyperparameters hyper{.lr = 3e-4,
                                            .beta1 = 0.9,
                                            .beta2 = 0.95,
                                            .eps = 1e-8,
                                            .weight_decay = seed % 2 == 1 ? 10.0 : 0.1,
                                            .maximize = seed % 2 == 1};
  return kernels::adamw_scalars(hyper, 7 + static_cast<int64_t>(seed), seed % 2 ? 1.0 / 3 : 1.0);
}

struct Range {
  int64_t first, n;
};

// Sizes around every vector (4, 8, 16 lanes; blocks of 16, 32, 64) and every tile, each at noise
// addresses that are and are not whole blocks, and ranges that straddle 2^35, where a counter word
// changes.
std::vector<Range> ranges() {
  std::vector<Range> list;
  int64_t first = 0;
  for (int64_t n : {0,  1,  3,  4,  5,  7,   8,   9,   15,  16,   17,   31,
                    32, 33, 63, 64, 65, 127, 511, 512, 513, 4095, 4096, 4097}) {
    list.push_back({first, n});
    list.push_back({first + 3, n});
    first += 1024 + n;
  }
  constexpr int64_t kSpan = int64_t{1} << 35;
  for (int64_t before : {1, 5, 8, 13, 40, 64, 100}) {
    list.push_back({kSpan - before, 200});
    list.push_back({7 * kSpan - before, before + 1});
  }
  list.push_back({5, 100'003});
  return list;
}

AdamwSlice at_range(AdamwSlice slice, Range range) {
  slice.global_col0 = range.first;
  slice.global_cols = range.first + range.n + 11;  // the slice is a piece of a longer row
  return slice;
}

std::vector<SliceArrays> filled_ranges(const AdamwFormat& format, DataClass data, uint64_t seed) {
  std::vector<SliceArrays> arrays;
  for (const Range& range : ranges()) {
    arrays.emplace_back(format, range.n, static_cast<int64_t>(arrays.size() % 17));
    arrays.back().fill(data, seed, [&](int64_t i) { return range.first + i; });
  }
  return arrays;
}

// One step over all ranges, in place. Returns how many elements saturated.
int64_t step_ranges(const AdamwFormat& format, std::vector<SliceArrays>& arrays, DataClass data,
                    uint64_t seed, ThreadPool& pool) {
  // With the class of data added even one seed runs both sets.
  const AdamwScalars scalars = scalars_of(seed + static_cast<uint64_t>(data));
  const std::vector<Range> list = ranges();
  std::vector<AdamwSlice> slices;
  for (size_t k = 0; k < list.size(); ++k) {
    slices.push_back(at_range(arrays[k].slice(format, scalars), list[k]));
  }
  return kernels::adamw_step(format, slices, kSeed + seed, pool);
}

int64_t total_elements() {
  int64_t n = 0;
  for (const Range& range : ranges()) n += range.n;
  return n;
}

// Which path has to have run: a template or tiles for all elements, and the reference for none, few
// or many of them, by the class of data.
void expect_paths(const AdamwFormat& format, DataClass data, bool is_reference) {
  const auto& counters = kernels::path_counters;
  const int64_t n = is_reference ? 0 : total_elements();
  const bool has_template = kernels::template_index(format).has_value();
  EXPECT_EQ(counters.adamw_template, has_template ? n : 0);
  EXPECT_EQ(counters.adamw_tile, has_template ? 0 : n);
  if (is_reference) {
    EXPECT_EQ(counters.handed_over, 0);
  } else if (data == DataClass::kOrdinary && has_template) {
    EXPECT_EQ(counters.handed_over, 0) << "ordinary data left the fast path";
  } else if (data == DataClass::kDense && has_template) {
    EXPECT_GT(counters.handed_over, n / 2) << "dense specials stayed on the fast path";
  }
}

class AdamwConformance : public ::testing::TestWithParam<AdamwFormat> {};

TEST_P(AdamwConformance, HasTheReferencesBits) {
  const AdamwFormat& format = GetParam();
  ThreadPool pool(2);
  for (uint64_t seed = 0; seed < num_seeds(); ++seed) {
    for (DataClass data : kDataClasses) {
      const std::vector<SliceArrays> inputs = filled_ranges(format, data, seed);
      std::vector<SliceArrays> expected = inputs;
      int64_t expected_saturated = 0;
      with_implementation("reference", [&] {
        expected_saturated = step_ranges(format, expected, data, seed, pool);
        expect_paths(format, data, true);
      });
      for (const std::string& implementation : implementations_under_test()) {
        SCOPED_TRACE(implementation + ", " + std::string(name_of(data)) + " data");
        std::vector<SliceArrays> actual = inputs;
        with_implementation(implementation, [&] {
          EXPECT_EQ(step_ranges(format, actual, data, seed, pool), expected_saturated);
          expect_paths(format, data, false);
        });
        for (size_t k = 0; k < expected.size(); ++k) {
          ASSERT_TRUE(same_arrays(actual[k], expected[k]))
              << "range " << k << ": first " << ranges()[k].first << ", n " << ranges()[k].n;
        }
      }
    }
  }
}

// A parameter of rows × cols, cut into rectangles at random: the rectangles are slices with memory
// of their own, and hold what the reference makes of the whole parameter in one slice.
TEST_P(AdamwConformance, AnyCutGivesTheSameBits) {
  const AdamwFormat& format = GetParam();
  constexpr int64_t kRows = 37, kCols = 203;
  ThreadPool pool(2);
  uint64_t random = std::hash<std::string>()(name_of(format));
  const auto below = [&](int64_t bound) {
    random = mixed(random);
    return static_cast<int64_t>(random % static_cast<uint64_t>(bound));
  };
  const auto cuts = [&](int64_t size, int64_t num) {
    std::vector<int64_t> at{0, size};
    for (int64_t k = 0; k < num; ++k) at.push_back(below(size));
    std::sort(at.begin(), at.end());
    return at;
  };
  const AdamwScalars scalars = scalars_of(0);
  for (DataClass data : kDataClasses) {
    // Columns left whole cut flat ranges of rows; rows left whole cut columns alone.
    const auto row_cuts = cuts(kRows, below(4)), col_cuts = cuts(kCols, below(4));
    SCOPED_TRACE(std::string(name_of(data)) + " data, " + std::to_string(row_cuts.size() - 1) +
                 " x " + std::to_string(col_cuts.size() - 1));
    SliceArrays whole(format, kRows * kCols, 0);
    whole.fill(data, 3, [](int64_t i) { return i; });
    AdamwSlice whole_slice = whole.slice(format, scalars);
    whole_slice.rows = kRows;
    whole_slice.cols = whole_slice.global_cols = kCols;
    with_implementation("reference", [&] {
      kernels::adamw_step(format, {&whole_slice, 1}, kSeed, pool);
    });

    std::vector<SliceArrays> pieces, expected;
    std::vector<AdamwSlice> slices;
    pieces.reserve(row_cuts.size() * col_cuts.size());
    for (size_t r = 0; r + 1 < row_cuts.size(); ++r) {
      for (size_t c = 0; c + 1 < col_cuts.size(); ++c) {
        const int64_t row0 = row_cuts[r], rows = row_cuts[r + 1] - row0;
        const int64_t col0 = col_cuts[c], cols = col_cuts[c + 1] - col0;
        const auto element = [&](int64_t i) {
          return cols ? (row0 + i / cols) * kCols + col0 + i % cols : 0;
        };
        SliceArrays& piece = pieces.emplace_back(format, rows * cols, below(17));
        piece.fill(data, 3, element);
        AdamwSlice slice = piece.slice(format, scalars);
        slice.rows = rows;
        slice.cols = cols;
        slice.global_row0 = row0;
        slice.global_col0 = col0;
        slice.global_cols = kCols;
        slices.push_back(slice);
        SliceArrays& cut = expected.emplace_back(format, rows * cols, 0);
        for (auto array :
             {&SliceArrays::weight, &SliceArrays::master, &SliceArrays::grad, &SliceArrays::exp_avg,
              &SliceArrays::exp_avg_sq, &SliceArrays::max_exp_avg_sq}) {
          for (int64_t i = 0; i < rows * cols; ++i) {
            (cut.*array).set(i, (whole.*array).get(element(i)));
          }
        }
      }
    }
    for (const std::string& implementation : implementations_under_test()) {
      SCOPED_TRACE(implementation);
      std::vector<SliceArrays> actual = pieces;
      for (size_t k = 0; k < slices.size(); ++k) actual[k].point(slices[k], format);
      with_implementation(implementation,
                          [&] { kernels::adamw_step(format, slices, kSeed, pool); });
      for (size_t k = 0; k < actual.size(); ++k) {
        ASSERT_TRUE(same_arrays(actual[k], expected[k])) << "piece " << k;
      }
    }
  }
}

// Ragged ends go through the same code as whole blocks, padded. Without eps an element whose second
// moment is 0 divides by 0; the padding must not be one.
TEST(AdamwPadding, StaysOnTheFastPathWithoutEps) {
  ThreadPool pool(1);
  AdamwScalars scalars = scalars_of(0);
  scalars.eps = 0;
  for (const AdamwFormat& format : all_formats()) {
    if (!kernels::template_index(format)) continue;
    SliceArrays inputs(format, 3, 0);
    inputs.fill(DataClass::kOrdinary, 1, [](int64_t i) { return i; });
    for (int64_t i = 0; i < 3; ++i)
      inputs.grad.set(i, inputs.grad.dtype() == Dtype::kF32 ? 0x3A800000 : 0x3A80);  // 2^-10
    SliceArrays expected = inputs;
    const AdamwSlice slice = expected.slice(format, scalars);
    with_implementation("reference", [&] {
      kernels::adamw_step(format, {&slice, 1}, kSeed, pool);
    });
    for (const std::string& implementation : implementations_under_test()) {
      SCOPED_TRACE(implementation + ", " + name_of(format));
      SliceArrays actual = inputs;
      const AdamwSlice actual_slice = actual.slice(format, scalars);
      with_implementation(implementation, [&] {
        kernels::adamw_step(format, {&actual_slice, 1}, kSeed, pool);
        EXPECT_EQ(kernels::path_counters.handed_over, 0);
      });
      ASSERT_TRUE(same_arrays(actual, expected));
    }
  }
}

// All implementations run in the same floating-point environment, so a comparison cannot see
// whether it flushes subnormals: a subnormal exp_avg counts as 0, and an exp_avg_sq that decays to
// a subnormal becomes 0.
TEST(AdamwEnvironment, SubnormalsAreFlushed) {
  const AdamwFormat fp32_state{.master = MasterMode::kSplit};
  AdamwFormat tiled = fp32_state;
  tiled.amsgrad = true;
  ThreadPool pool(1);
  std::vector<std::string> names = implementations_under_test();
  names.push_back("reference");
  for (const AdamwFormat& format : {fp32_state, tiled}) {
    for (const std::string& implementation : names) {
      SCOPED_TRACE(implementation + ", " + name_of(format));
      SliceArrays arrays(format, 100, 0);
      for (auto array : {&SliceArrays::weight, &SliceArrays::master, &SliceArrays::grad,
                         &SliceArrays::max_exp_avg_sq}) {
        for (int64_t i = 0; i < 100; ++i) (arrays.*array).set(i, 0);
      }
      for (int64_t i = 0; i < 100; ++i) {
        arrays.exp_avg.set(i, 0x00400000);
        arrays.exp_avg_sq.set(i, 0x00800001);  // just normal
      }
      const AdamwScalars scalars = scalars_of(0);
      const AdamwSlice slice = arrays.slice(format, scalars);
      with_implementation(implementation, [&] {
        kernels::adamw_step(format, {&slice, 1}, kSeed, pool);
      });
      for (int64_t i = 0; i < 100; ++i) {
        ASSERT_EQ(arrays.exp_avg.get(i), 0u) << "element " << i;
        ASSERT_EQ(arrays.exp_avg_sq.get(i), 0u) << "element " << i;
      }
    }
  }
}

// A value that saturates counts although a NaN follows it in the same lane of a vector (16 elements
// on are the same lane for every width).
TEST(AdamwSaturation, IsCountedBesideNaN) {
  ThreadPool pool(1);
  std::vector<std::string> names = implementations_under_test();
  names.push_back("reference");
  for (bool amsgrad : {false, true}) {  // a template, and tiles
    const AdamwFormat format{.master = MasterMode::kSplit,
                             .exp_avg = Dtype::kBF16,
                             .exp_avg_sq = Dtype::kUE6M10,
                             .amsgrad = amsgrad};
    for (const std::string& implementation : names) {
      SCOPED_TRACE(implementation + ", " + name_of(format));
      SliceArrays arrays(format, 100, 0);
      arrays.fill(DataClass::kOrdinary, 1, [](int64_t i) { return i; });
      arrays.grad.set(0, 0x44000000);   // 512: with c2 = .05 v' is above 13 000
      arrays.grad.set(16, 0x7FC00000);  // NaN
      const AdamwScalars scalars = scalars_of(0);
      const AdamwSlice slice = arrays.slice(format, scalars);
      with_implementation(implementation, [&] {
        EXPECT_EQ(kernels::adamw_step(format, {&slice, 1}, kSeed, pool), 1);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllFormats, AdamwConformance, ::testing::ValuesIn(all_formats()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace halfstep::conformance
