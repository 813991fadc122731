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
  for (const Bar& bar : bars_of(rows(10), 18 / 0.75)) EXPECT_TRUE(bar.met()) << bar.what;
}

TEST(Bars, FailOneByOne) {
  for (const Bar& bar : bars_of(rows(10.1), 18 / 0.75)) EXPECT_FALSE(bar.met()) << bar.what;
}

TEST(Bars, AMissingRowIsAFault) { EXPECT_ANY_THROW(bars_of({}, 20)); }

}  // namespace
}  // namespace halfstep::bench
