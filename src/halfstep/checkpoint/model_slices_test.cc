#include "halfstep/checkpoint/model_slices.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace halfstep::checkpoint {
namespace {

// Sizes that no number of ranks divides, and one that holds several buckets' worth.
std::vector<arch::Parameter> odd_parameters() {
  std::vector<arch::Parameter> parameters;
  for (const int64_t n : {5, 1, 7, 1'000'003}) {
    parameters.push_back({.name = "p" + std::to_string(n), .shape = {n}});
  }
  parameters.push_back({.name = "matrix", .shape = {33, 129}});
  parameters.push_back({.name = "fp32", .shape = {17}});
  return parameters;
}

layout::Layout layout_for(int64_t ranks, int64_t bucket_bytes, MasterMode master) {
  const layout::LayoutOptions options{
      .format = {.master = master, .exp_avg = Dtype::kBF16, .exp_avg_sq = Dtype::kUE6M10},
      .keep_fp32 = [](const arch::Parameter& p) { return p.name == "fp32"; },
      .num_ranks = ranks,
      .bucket_bytes = bucket_bytes};
  return layout::build_layout(odd_parameters(), options);
}

// P06, P07: every element once, whatever the cut, and nothing in the addresses says which it was.
TEST(ModelSlices, AllRanksTogetherStoreEachElementOnce) {
  const auto parameters = odd_parameters();
  for (const int64_t ranks : {1, 2, 3, 4, 6, 8}) {
    for (const int64_t bucket_bytes : {4 << 10, 64 << 10, 1 << 30}) {
      for (const MasterMode master : {MasterMode::kFp32, MasterMode::kSplit, MasterMode::kNone}) {
        const layout::Layout layout = layout_for(ranks, bucket_bytes, master);
        std::map<std::pair<TensorKind, std::string>, int64_t> next;  // element not yet stored
        for (int64_t rank = 0; rank < ranks; ++rank) {
          for (const ModelSlice& slice : slices_to_save(layout, parameters, rank)) {
            ASSERT_EQ(slice_fault(slice), "");
            EXPECT_EQ(slice.box, whole_box(slice.shape));
            int64_t& end = next[{slice.kind, slice.name}];
            if (slice.numel > 0) {
              EXPECT_EQ(slice.start, end) << format_slice_name(slice);
            }
            end += slice.numel;
          }
        }
        const size_t kinds = master == MasterMode::kNone ? 3 : 4;
        EXPECT_EQ(next.size(), 5 * kinds + 3);  // FP32 weights are their own master
        for (const auto& [tensor, end] : next) {
          const auto parameter =
              std::find_if(parameters.begin(), parameters.end(),
                           [&, name = tensor.second](const auto& p) { return p.name == name; });
          EXPECT_EQ(end, parameter->numel()) << tensor.second;
        }
        EXPECT_EQ(next.contains({TensorKind::kRemainder, "matrix"}), master == MasterMode::kSplit);
      }
    }
  }
}

TEST(ModelSlices, ALoadAsksForWholeWeightsAndForStateOnlyIfWanted) {
  const auto parameters = odd_parameters();
  const layout::Layout layout = layout_for(3, 4 << 10, MasterMode::kSplit);
  const auto saved = slices_to_save(layout, parameters, 1);
  const auto all = slices_to_load(layout, parameters, 1, /*with_state=*/true);
  ASSERT_EQ(all.size(), saved.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].kind == TensorKind::kWeight) {
      EXPECT_TRUE(all[i].whole_range());
    } else {
      EXPECT_EQ(static_cast<const Slice&>(all[i]), saved[i]);
    }
  }
  std::set<TensorKind> kinds;
  for (const ModelSlice& slice : slices_to_load(layout, parameters, 1, /*with_state=*/false)) {
    kinds.insert(slice.kind);
  }
  EXPECT_EQ(kinds, (std::set{TensorKind::kWeight, TensorKind::kRemainder}));
}

// 2 + 2 + 2 + 2 bytes of each element in BF16, 4 + 4 + 4 of those in FP32.
TEST(ModelSlices, BytesAreThoseOfTheElements) {
  const auto parameters = odd_parameters();
  int64_t common = 0, bytes = 0;
  for (const auto& p : parameters) common += p.name == "fp32" ? 0 : p.numel();
  const layout::Layout layout = layout_for(4, 4 << 10, MasterMode::kSplit);
  for (int64_t rank = 0; rank < 4; ++rank) {
    bytes += total_bytes(slices_to_save(layout, parameters, rank));
  }
  EXPECT_EQ(bytes, 8 * common + 12 * 17);
}

}  // namespace
}  // namespace halfstep::checkpoint
