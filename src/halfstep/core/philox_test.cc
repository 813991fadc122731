#include "halfstep/core/philox.h"

#include <gtest/gtest.h>

#include "halfstep/core/hash.h"

namespace halfstep {
namespace {

TEST(Philox, KnownAnswers) {
  // From the generator's published test vectors (docs/numerics.md §5).
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, ElementsOfABlockTakeTheHalvesOfItsWordsInOrder) {
  const NoiseStream stream{.seed = 0x123456789abcdef0, .name_hash = fnv1a("w"), .step = 7,
                           .purpose = NoisePurpose::kExpAvgSq};
  const auto words = philox4x32_10(stream.counter(3), stream.key());
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(stream.bits16(24 + i), i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xFFFF);
  }
}

TEST(Philox, CounterHoldsEveryPartOfTheAddress) {
  const NoiseStream stream{.seed = 1, .name_hash = 0xAAAABBBBCCCCDDDD, .step = 0x12345678,
                           .purpose = NoisePurpose::kGradient, .micro_step = 0xFFFF};
  EXPECT_EQ(stream.key(), (PhiloxKey{1, 0xAAAABBBB}));
  EXPECT_EQ(stream.counter(0xFEDC87654321),
            (PhiloxCounter{0x87654321, 0xFFFFFEDC, 0xCCCCDDDD, 0x32345678}));
}

TEST(Hash, Fnv1aKnownAnswers) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8ull);
}

}  // namespace
}  // namespace halfstep
