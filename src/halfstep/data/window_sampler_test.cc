#include "halfstep/data/window_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "halfstep/core/error.h"
#include "halfstep/data/memory_dataset.h"

namespace halfstep::data {
namespace {

using testing::ElementsAre;

// One document whose tokens are first, first + 1, …
std::shared_ptr<MemoryDataset> counting(int64_t num_tokens, int32_t first = 0) {
  std::vector<int32_t> tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), first);
  auto data = std::make_shared<MemoryDataset>("counting");
  data->add_document(tokens);
  return data;
}

WindowSampler whole(std::shared_ptr<const TokenDataset> data, const WindowOptions& options,
                    uint64_t seed = 1, bool shuffle = false) {
  const int64_t windows = num_windows(*data, options.seq_length);
  return WindowSampler(std::move(data), options, seed, shuffle, 0, windows);
}

TEST(WindowSampler, WindowsOverlapByOneTokenAndTheLastPartialOneIsDropped) {
  EXPECT_EQ(num_windows(*counting(0), 4), 0);
  EXPECT_EQ(num_windows(*counting(4), 4), 0);
  EXPECT_EQ(num_windows(*counting(5), 4), 1);
  EXPECT_EQ(num_windows(*counting(8), 4), 1);
  EXPECT_EQ(num_windows(*counting(9), 4), 2);
}

TEST(WindowSampler, TargetsAreTheNextTokens) {
  const auto batch = whole(counting(12), {.seq_length = 4}).read(0, 2);
  EXPECT_EQ(batch.batch, 2);
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(batch.segment_starts, ElementsAre(0, 4, 8));
  EXPECT_EQ(batch.num_targets, 8);
}

// 97 samples, global batch 8: the stream of a run that resumes in step 5 and step 13 (the second
// epoch), with other micro-batch sizes, is that of the uninterrupted run.
TEST(WindowSampler, ResumedStreamsAreEqual) {
  constexpr int64_t kGlobalBatch = 8, kSteps = 30;
  const auto data = counting(97 * 3 + 1);
  const auto stream = [&](int64_t first_step, int64_t last_step, int64_t micro_batch) {
    // A new sampler, as after a restart: all it gets is the number of samples consumed.
    const WindowSampler sampler = whole(data, {.seq_length = 3}, 42, true);
    std::vector<int64_t> tokens;
    for (int64_t i = first_step * kGlobalBatch; i < last_step * kGlobalBatch; i += micro_batch) {
      const auto batch = sampler.read(i, micro_batch);
      tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
    }
    return tokens;
  };
  const auto uninterrupted = stream(0, kSteps, 8);
  auto resumed = stream(0, 5, 1);
  for (const auto& part : {stream(5, 13, 2), stream(13, kSteps, 4)}) {
    resumed.insert(resumed.end(), part.begin(), part.end());
  }
  EXPECT_EQ(resumed, uninterrupted);
}

TEST(WindowSampler, EveryEpochReadsEveryWindowOnceInAnotherOrder) {
  const WindowSampler sampler = whole(counting(97 * 3 + 1), {.seq_length = 3}, 42, true);
  EXPECT_EQ(sampler.samples_per_epoch(), 97);
  std::vector<std::vector<int64_t>> epochs(3);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (int64_t i = 0; i < 97; ++i) epochs[epoch].push_back(sampler.sample_at(epoch * 97 + i));
    const std::set<int64_t> distinct(epochs[epoch].begin(), epochs[epoch].end());
    EXPECT_EQ(distinct.size(), 97u);
    EXPECT_EQ(*distinct.begin(), 0);
    EXPECT_EQ(*distinct.rbegin(), 96);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(WindowSampler, WithoutShuffleEveryEpochIsInFileOrder) {
  const WindowSampler sampler = whole(counting(13), {.seq_length = 4});
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(sampler.sample_at(i), i % 3);
}

TEST(WindowSampler, ASplitStaysInsideItsRange) {
  const WindowSampler sampler(counting(401), {.seq_length = 4}, 3, true, 20, 30);
  std::set<int64_t> windows;
  for (int64_t i = 0; i < 30; ++i) {
    windows.insert(sampler.locate(i).window);
    EXPECT_EQ(sampler.sample_at(i), sampler.locate(i).window - 20);
  }
  EXPECT_EQ(windows.size(), 30u);
  EXPECT_EQ(*windows.begin(), 20);
  EXPECT_EQ(*windows.rbegin(), 49);
}

// Documents: [1 2 9] [3 9] [] [4 5 6 7 9] with the end marker 9, then a document without one.
std::shared_ptr<MemoryDataset> documents() {
  auto data = std::make_shared<MemoryDataset>("documents");
  const std::vector<std::vector<int32_t>> all{{1, 2, 9},       {3, 9}, {},
                                              {4, 5, 6, 7, 9}, {8, 8}, {2, 2, 2}};
  for (const auto& tokens : all) data->add_document(tokens);
  return data;
}

TEST(Packing, PositionsStartAnewInEachDocument) {
  const auto batch =
      whole(documents(), {.seq_length = 7, .eod_token = 9, .reset_position_ids = true}).read(0, 2);
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 9, 3, 9, 4, 5, /**/ 6, 7, 9, 8, 8, 2, 2));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0, 1, 0, 1, /**/ 0, 1, 2, 0, 1, 0, 1));
  EXPECT_THAT(batch.segment_starts, ElementsAre(0, 7, 14));
  EXPECT_EQ(batch.num_targets, 14);
}

TEST(Packing, AttentionSegmentsAreDocuments) {
  const auto batch =
      whole(documents(), {.seq_length = 7, .eod_token = 9, .reset_attention_mask = true})
          .read(0, 2);
  EXPECT_THAT(batch.segment_starts, ElementsAre(0, 3, 5, 7, 10, 12, 14));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6));
}

TEST(Packing, TheFirstTokenOfADocumentIsNoTarget) {
  const auto batch =
      whole(documents(), {.seq_length = 7, .eod_token = 9, .eod_mask_loss = true}).read(0, 2);
  constexpr int64_t no = kIgnoreTarget;
  EXPECT_THAT(batch.targets, ElementsAre(2, 9, no, 9, no, 5, 6, /**/ 7, 9, no, 8, no, 2, 2));
  EXPECT_EQ(batch.num_targets, 10);
}

// The document that starts with the very last target of a row ends the row's last document.
TEST(Packing, ADocumentThatStartsWithTheLastTargetIsSeen) {
  const auto batch = whole(documents(), {.seq_length = 3, .eod_mask_loss = true}).read(0, 1);
  EXPECT_THAT(batch.targets, ElementsAre(2, 9, kIgnoreTarget));
}

// A dataset may hold several documents in one: then only the marker tells them apart.
TEST(Packing, AnEndMarkerInsideADocumentEndsIt) {
  auto data = std::make_shared<MemoryDataset>("one");
  data->add_document(std::vector<int32_t>{1, 9, 2, 3, 4});
  WindowOptions options{.seq_length = 4, .reset_attention_mask = true};
  EXPECT_THAT(whole(data, options).read(0, 1).segment_starts, ElementsAre(0, 4));
  options.eod_token = 9;
  EXPECT_THAT(whole(data, options).read(0, 1).segment_starts, ElementsAre(0, 2, 4));
}

TEST(WindowSampler, BlendsReadEachSourceInItsOwnEpochs) {
  const std::vector<WindowRange> sources{{counting(5 * 2 + 1), 0, 5, 0.25},
                                         {counting(40 * 2 + 1, 1000), 0, 40, 0.75}};
  const WindowSampler sampler(sources, {.seq_length = 2}, 9, true);
  EXPECT_EQ(sampler.samples_per_epoch(), 45);
  std::vector<int64_t> counts(2);
  std::vector<std::multiset<int64_t>> windows(2);
  for (int64_t i = 0; i < 40; ++i) {
    const auto location = sampler.locate(i);
    ++counts[location.source];
    windows[location.source].insert(location.window);
    EXPECT_EQ(sampler.read(i, 1).tokens[0], location.source * 1000 + location.window * 2);
    EXPECT_EQ(sampler.sample_at(i), location.source * 5 + location.window);
  }
  EXPECT_THAT(counts, ElementsAre(10, 30));
  for (int64_t w = 0; w < 5; ++w) EXPECT_EQ(windows[0].count(w), 2u) << "two epochs of source 0";
  EXPECT_EQ(std::set<int64_t>(windows[1].begin(), windows[1].end()).size(), 30u);
}

TEST(WindowSampler, SourcesOfEqualSizeHaveDifferentOrders) {
  const std::vector<WindowRange> sources{{counting(101), 0, 100, 1}, {counting(101), 0, 100, 1}};
  const WindowSampler sampler(sources, {.seq_length = 1}, 9, true);
  int equal = 0;
  for (int64_t i = 0; i < 200; i += 2)
    equal += sampler.locate(i).window == sampler.locate(i + 1).window;
  EXPECT_LE(equal, 8);  // Poisson(1); P(more than 8) < 1.2e-6
}

TEST(WindowSampler, TooLittleDataIsAnInputError) {
  EXPECT_THROW(WindowSampler(counting(4), {.seq_length = 4}, 0, true, 0, 1), InputError);
  EXPECT_THROW(WindowSampler(counting(5), {.seq_length = 4}, 0, true, 0, 0), InputError);
}

TEST(WindowSampler, TokensOutsideTheVocabularyAreAnInputError) {
  EXPECT_NO_THROW(whole(counting(9), {.seq_length = 4, .vocab_size = 9}).read(0, 2));
  EXPECT_THROW(whole(counting(9), {.seq_length = 4, .vocab_size = 8}).read(0, 2), InputError);
  EXPECT_THROW(whole(counting(9, -1), {.seq_length = 4, .vocab_size = 9}).read(0, 1), InputError);
}

TEST(Fingerprint, SeesTokensDocumentsSplitsAndWeights) {
  const auto base = counting(1000);
  EXPECT_EQ(base->fingerprint(), counting(1000)->fingerprint());
  EXPECT_NE(base->fingerprint(), counting(1001)->fingerprint());
  EXPECT_NE(base->fingerprint(), counting(1000, 1)->fingerprint());
  auto split_in_two = std::make_shared<MemoryDataset>("two");
  std::vector<int32_t> tokens(1000);
  base->read(0, tokens);
  split_in_two->add_document(std::span(tokens).first(500));
  split_in_two->add_document(std::span(tokens).last(500));
  EXPECT_NE(base->fingerprint(), split_in_two->fingerprint());

  const auto of = [&](int64_t first, int64_t count, double weight) {
    return WindowSampler({{base, first, count, weight}, {base, 0, 9, 1}}, {.seq_length = 9}, 0,
                         true)
        .fingerprint();
  };
  EXPECT_EQ(of(0, 9, 1), of(0, 9, 1));
  EXPECT_NE(of(0, 9, 1), of(1, 9, 1));
  EXPECT_NE(of(0, 9, 1), of(0, 8, 1));
  EXPECT_NE(of(0, 9, 1), of(0, 9, 2));
}

TEST(Fingerprint, OfAnEmptyDatasetIsDefined) {
  EXPECT_EQ(MemoryDataset("a").fingerprint(), MemoryDataset("b").fingerprint());
}

}  // namespace
}  // namespace halfstep::data
