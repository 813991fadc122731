#include "halfstep/data/example_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "halfstep/core/error.h"

namespace halfstep::data {
namespace {

using ::testing::ElementsAre;
constexpr int64_t no = kIgnoreTarget;

// Example e has tokens 10 · e, 10 · e + 1, …, of which all but the first `prompt` are learned.
struct Shape {
  int64_t length, prompt;
};

std::shared_ptr<ExampleSet> make_set(const std::vector<Shape>& shapes) {
  auto set = std::make_shared<ExampleSet>(std::vector<std::string>{"f.jsonl"});
  for (size_t e = 0; e < shapes.size(); ++e) {
    Example example;
    for (int64_t i = 0; i < shapes[e].length; ++i) {
      example.tokens.push_back(static_cast<int32_t>(10 * e + i));
      example.learned.push_back(i >= shapes[e].prompt);
    }
    set->add(example, 0, static_cast<int64_t>(e) + 1);
  }
  return set;
}

ExampleSampler in_order(const std::vector<Shape>& shapes, const ExampleSamplerOptions& options) {
  return {make_set(shapes), options, 1, false, 0, static_cast<int64_t>(shapes.size())};
}

TEST(ExampleSampler, ExamplesShareARowWithoutSeeingEachOther) {
  // 3 + 2 places and 3 of padding.
  const auto batch = in_order({{4, 2}, {3, 1}}, {.seq_length = 8}).read(0, 1);
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1, 2, /**/ 10, 11, /**/ 0, 0, 0));
  // The last token of the first example has no successor, whatever stands behind it.
  EXPECT_THAT(batch.targets, ElementsAre(no, 2, 3, /**/ 11, 12, /**/ no, no, no));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, /**/ 0, 1, /**/ 0, 1, 2));
  EXPECT_THAT(batch.segment_starts, ElementsAre(0, 3, 5, 8));
  EXPECT_EQ(batch.num_targets, 4);
}

TEST(ExampleSampler, SeveralRowsFillABatchToTheEnd) {
  const auto batch = in_order({{5, 1}, {3, 2}, {5, 4}}, {.seq_length = 4}).read(0, 3);
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1, 2, 3, /**/ 10, 11, 0, 0, /**/ 20, 21, 22, 23));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, 4, /**/ no, 12, no, no, /**/ no, no, no, 24));
  EXPECT_THAT(batch.segment_starts, ElementsAre(0, 4, 6, 8, 12));
  EXPECT_EQ(batch.num_targets, 6);
}

TEST(ExampleSampler, WithoutPackingEachExampleHasARow) {
  const auto sampler = in_order({{3, 1}, {2, 1}}, {.seq_length = 4, .packing = false});
  EXPECT_EQ(sampler.samples_per_epoch(), 2);
  const auto batch = sampler.read(0, 2);
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1, 0, 0, /**/ 10, 0, 0, 0));
  EXPECT_THAT(batch.segment_starts, ElementsAre(0, 2, 4, 5, 8));
  EXPECT_DOUBLE_EQ(sampler.fill(), 3.0 / 8);
}

TEST(ExampleSampler, CountsWhatItHas) {
  const ExampleSampler sampler(make_set({{4, 2}, {3, 1}, {9, 8}}), {.seq_length = 8}, 1, false, 0,
                               2);
  EXPECT_EQ(sampler.num_examples(), 2);
  EXPECT_EQ(sampler.num_tokens(), 7);
  EXPECT_EQ(sampler.num_targets(), 4);
  EXPECT_DOUBLE_EQ(sampler.fill(), 5.0 / 8);
}

std::vector<Shape> many(int64_t n) {
  std::vector<Shape> shapes;
  for (int64_t e = 0; e < n; ++e) shapes.push_back({2 + e * e % 6, 1});
  return shapes;
}

TEST(ExampleSampler, EveryEpochReadsEveryExampleOnceInAnotherOrder) {
  const ExampleSampler sampler(make_set(many(100)), {.seq_length = 8}, 42, true, 10, 80);
  const int64_t rows = sampler.samples_per_epoch();
  std::vector<std::vector<int64_t>> orders(3);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::multiset<int64_t> seen;
    for (int64_t i = 0; i < rows; ++i) {
      orders[epoch].push_back(sampler.sample_at(epoch * rows + i));
      const auto row = sampler.read(epoch * rows + i, 1);
      for (size_t s = 0; s + 1 < row.segment_starts.size(); ++s) {
        const int64_t begin = row.segment_starts[s];
        if (row.targets[begin] != no) seen.insert(row.tokens[begin] / 10);  // no padding
      }
    }
    EXPECT_EQ(seen.size(), 80u);
    EXPECT_EQ(*seen.begin(), 10);
    EXPECT_EQ(*seen.rbegin(), 89);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 80u);
    std::vector<int64_t> sorted = orders[epoch];
    std::sort(sorted.begin(), sorted.end());
    for (int64_t i = 0; i < rows; ++i) EXPECT_EQ(sorted[i], i);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

// As of the windows: a run that resumes anywhere, with other micro-batches, reads the same.
TEST(ExampleSampler, ResumedStreamsAreEqual) {
  const auto stream = [&](int64_t first, int64_t last, int64_t micro_batch) {
    const ExampleSampler sampler(make_set(many(97)), {.seq_length = 8}, 42, true, 0, 97);
    std::vector<int64_t> all;
    for (int64_t i = first; i < last; i += micro_batch) {
      const auto batch = sampler.read(i, micro_batch);
      all.insert(all.end(), batch.tokens.begin(), batch.tokens.end());
      all.insert(all.end(), batch.targets.begin(), batch.targets.end());
    }
    return all;
  };
  // Tokens and targets of one row at a time, so that streams of other batches can be compared.
  const auto whole = stream(0, 240, 1);
  auto parts = stream(0, 40, 1);
  for (const auto& part : {stream(40, 104, 1), stream(104, 240, 1)}) {
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(parts, whole);
  const ExampleSampler sampler(make_set(many(97)), {.seq_length = 8}, 42, true, 0, 97);
  const auto batch = sampler.read(38, 4);
  for (int64_t i = 0; i < 4; ++i) {
    const auto row = sampler.read(38 + i, 1);
    EXPECT_TRUE(std::equal(row.tokens.begin(), row.tokens.end(), batch.tokens.begin() + 8 * i));
    EXPECT_TRUE(std::equal(row.targets.begin(), row.targets.end(), batch.targets.begin() + 8 * i));
  }
}

TEST(ExampleSampler, TheFingerprintSeesTokensTargetsCutsAndRows) {
  const auto of = [](const std::vector<Shape>& shapes, const ExampleSamplerOptions& options,
                     int64_t first = 0) {
    return ExampleSampler(make_set(shapes), options, 7, true, first,
                          static_cast<int64_t>(shapes.size()) - first)
        .fingerprint();
  };
  const std::vector<Shape> base{{4, 2}, {3, 1}};
  const uint64_t print = of(base, {.seq_length = 8});
  EXPECT_EQ(print, of(base, {.seq_length = 8}));
  EXPECT_NE(print, of({{4, 1}, {3, 1}}, {.seq_length = 8}));
  EXPECT_NE(print, of({{3, 2}, {4, 1}}, {.seq_length = 8}));
  EXPECT_NE(print, of(base, {.seq_length = 9}));
  EXPECT_NE(print, of(base, {.seq_length = 8, .packing = false}));
  EXPECT_NE(print, of(base, {.seq_length = 8}, 1));
}

TEST(ExampleSampler, TokensOutsideTheVocabularyNameTheLine) {
  EXPECT_NO_THROW(in_order({{4, 2}, {3, 1}}, {.seq_length = 8, .vocab_size = 13}));
  try {
    in_order({{4, 2}, {3, 1}}, {.seq_length = 8, .vocab_size = 12});
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("f.jsonl:2: token 12"));
  }
}

}  // namespace
}  // namespace halfstep::data
