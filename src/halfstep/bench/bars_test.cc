#include "halfstep/bench/bars.h"

#include <gtest/gtest.h>

namespace halfstep::bench {
namespace {

std::vector<Row> rows(double split_ms) {
  return {{std::string(kSplitRow), {split_ms, split_ms}, 18, 180 / split_ms},
          {std::string(kTorchFusedRow), {13, 13}, 28, 0},
          {std::string(kMixedBaselineRow), {17, 17}, 34, 0},
          {std::string(kConvertRow), {35, 35}, 64, 0}};
}

TEST(Bars, AreMetExactlyAtTheirBound) {
  for (const Bar& bar : bars_of(rows(10), TensorSet::kOneLarge, 18 / 0.75, "avx512"))
    EXPECT_TRUE(bar.met()) << bar.what;
}

TEST(Bars, FailOneByOne) {
  for (const Bar& bar : bars_of(rows(10.1), TensorSet::kOneLarge, 18 / 0.75, "avx512"))
    EXPECT_FALSE(bar.met()) << bar.what;
}

TEST(Bars, AreLowerWithoutAvx512) {
  const auto wide = bars_of(rows(10), TensorSet::kOneLarge, 24, "avx512");
  const auto narrow = bars_of(rows(10), TensorSet::kOneLarge, 24, "avx2");
  ASSERT_EQ(wide.size(), narrow.size());
  for (size_t i = 0; i < wide.size(); ++i) EXPECT_LE(narrow[i].required, wide[i].required);
  EXPECT_LT(narrow[0].required, wide[0].required);
}

TEST(Bars, OfATransformersTensorsDifferInTheCachedTemporariesAlone) {
  const auto one = bars_of(rows(10), TensorSet::kOneLarge, 24, "avx512");
  const auto list = bars_of(rows(10), TensorSet::kTransformer, 24, "avx512");
  ASSERT_EQ(one.size(), list.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(list[i].required < one[i].required, i == 2);
}

TEST(Bars, AMissingRowIsAFault) {
  EXPECT_ANY_THROW(bars_of({}, TensorSet::kOneLarge, 20, "avx512"));
}

}  // namespace
}  // namespace halfstep::bench
