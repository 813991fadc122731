#include "halfstep/data/example_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halfstep/core/test_folder.h"
#include "halfstep/data/test_errors.h"
#include "halfstep/data/tokenizer.h"

namespace halfstep::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Bytes, with a token in front of texts (a BOS), and chats of which the second half is learned. A
// text with '!' is one that it cannot take.
class TestTokenizer final : public Tokenizer {
 public:
  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string_view> texts) override {
    ++requests;
    for (const std::string_view text : texts) {
      if (text.find('!') != text.npos) throw InputError("text refused", "the hint");
    }
    return bytes_.encode_batch(texts);
  }
  std::vector<std::string> decode_batch(std::span<const std::vector<int32_t>> texts) override {
    return bytes_.decode_batch(texts);
  }
  std::vector<Example> encode_chats(std::span<const std::string_view> conversations) override {
    ++requests;
    std::vector<Example> all;
    for (const std::string_view conversation : conversations) {
      Example& example = all.emplace_back();
      example.tokens.assign(4, static_cast<int32_t>(conversation.size()));
      example.learned = {0, 0, 1, 1};
    }
    return all;
  }
  ChatPrompt chat_prompt(std::string_view) override { return {}; }
  int64_t vocab_size() const override { return 1000; }
  int64_t eod() const override { return eod_token; }
  std::span<const int32_t> prefix() const override { return prefix_; }

  int64_t eod_token = 999;
  int requests = 0;

 private:
  ByteTokenizer bytes_;
  std::vector<int32_t> prefix_{998};
};

const std::string kChat =
    R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";

class ReadExamplesTest : public ::testing::Test {
 protected:
  ReadExamples read(const std::string& content, const ExampleReaderOptions& options = {}) {
    return read_examples({folder_.write("a.jsonl", content)}, tokenizer_, options);
  }

  TestFolder folder_;
  TestTokenizer tokenizer_;
};

TEST_F(ReadExamplesTest, APairIsBosPromptCompletionAndEndMarkerAndTheLastTwoAreLearned) {
  const ExampleSet set = read(R"({"prompt": "ab", "completion": "cd"})").examples;
  ASSERT_EQ(set.size(), 1);
  EXPECT_THAT(set.tokens(0), ElementsAre(998, 'a', 'b', 'c', 'd', 999));
  EXPECT_THAT(set.learned(0), ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_EQ(set.num_tokens(), 6);
  EXPECT_EQ(set.num_targets(), 3);
}

TEST_F(ReadExamplesTest, WithTheByteTokenizerThereIsNoBosAndAnEmptyPromptLearnsAllButItsFirst) {
  ByteTokenizer bytes;
  const std::string file =
      folder_.write("b.jsonl", "{\"prompt\": \"\", \"completion\": \"\\u00e9\"}\n");
  const ExampleSet set = read_examples({file}, bytes, {}).examples;
  EXPECT_THAT(set.tokens(0), ElementsAre(0xC3, 0xA9, ByteTokenizer::kEod));
  EXPECT_EQ(set.num_targets(), 2);
  EXPECT_THAT(input_error_of([&] { read_examples({folder_.write("c.jsonl", kChat)}, bytes, {}); }),
              AllOf(StartsWith(folder_ / "c.jsonl:1"), HasSubstr("no chat template")));
}

TEST_F(ReadExamplesTest, BothFormsInOneFileStayInOrderAndKnowTheirLines) {
  const std::string first =
      folder_.write("1.jsonl", kChat + "\n \t\r\n" + R"({"prompt": "a", "completion": "b"})" +
                                   "\r\n" + kChat + " \n");
  const std::string second = folder_.write("2.jsonl", R"({"prompt": "c", "completion": "d"})");
  const ExampleSet set = read_examples({first, second}, tokenizer_, {}).examples;
  ASSERT_EQ(set.size(), 4);
  EXPECT_EQ(set.tokens(0)[0], static_cast<int32_t>(kChat.size()));
  EXPECT_THAT(set.learned(0), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(set.tokens(1), ElementsAre(998, 'a', 'b', 999));
  EXPECT_THAT(set.tokens(3), ElementsAre(998, 'c', 'd', 999));
  EXPECT_EQ(set.name(1), first + ":3");
  EXPECT_EQ(set.name(2), first + ":4");
  EXPECT_EQ(set.name(3), second + ":1");
  EXPECT_EQ(tokenizer_.requests, 2) << "one for all pairs, one for all conversations";
}

TEST_F(ReadExamplesTest, ManyLinesAreManyBatchesInOrder) {
  std::string content;
  for (int i = 0; i < 10'000; ++i) {
    content += "{\"prompt\": \"" + std::to_string(i) + "\", \"completion\": \"x\"}\n";
  }
  const ExampleSet set = read(content).examples;
  ASSERT_EQ(set.size(), 10'000);
  EXPECT_EQ(tokenizer_.requests, 3);  // of 4096 lines
  for (int64_t e = 0; e < set.size(); ++e) {
    const std::string number = std::to_string(e);
    const auto tokens = set.tokens(e);
    EXPECT_EQ(std::string(tokens.begin() + 1, tokens.end() - 2), number);
  }
}

TEST_F(ReadExamplesTest, TheTokenizersErrorNamesTheLine) {
  EXPECT_THAT(input_error_of([&] {
                read(R"({"prompt": "a", "completion": "b"}
{"prompt": "c", "completion": "d!"})");
              }),
              AllOf(StartsWith(folder_ / "a.jsonl:2: "), HasSubstr("text refused")));
}

TEST_F(ReadExamplesTest, WhatCannotBeReadIsAnError) {
  EXPECT_THAT(input_error_of([&] { read(" \n\n"); }), HasSubstr("no examples"));
  EXPECT_THAT(input_error_of([&] {
                read(R"({"prompt": "a", "completion": "b"}
{"prompt": "a")");
              }),
              StartsWith(folder_ / "a.jsonl:2"));
  EXPECT_THAT(input_error_of([&] {
                read(R"({"prompt": "a", "completion": "bcdefgh"})", {.max_line_bytes = 10});
              }),
              HasSubstr("more than 10 bytes"));
  EXPECT_THAT(input_error_of([&] { read_examples({"/nowhere.jsonl"}, tokenizer_, {}); }),
              HasSubstr("/nowhere.jsonl"));
  tokenizer_.eod_token = -1;
  EXPECT_NO_THROW(read(kChat));  // its end is the template's
  EXPECT_THAT(input_error_of([&] { read(R"({"prompt": "a", "completion": "b"})"); }),
              HasSubstr("eos_token"));
}

// Lengths 4, 8, 6, 5 with BOS and end marker; the third has a prompt of 4 tokens, with BOS.
const char kLengths[] = R"({"prompt": "a", "completion": "b"}
{"prompt": "a", "completion": "bcdef"}
{"prompt": "abc", "completion": "d"}
{"prompt": "a", "completion": "bc"})";

TEST_F(ReadExamplesTest, LongExamplesAreRefusedWithTheirNumberAndTheLongest) {
  EXPECT_EQ(read(kLengths, {.max_tokens = 8}).examples.size(), 4);
  EXPECT_THAT(
      input_error_of([&] { read(kLengths, {.max_tokens = 5}); }),
      AllOf(HasSubstr("2 of 4 examples have more than the 4 tokens of --seq-length and one"),
            HasSubstr("a.jsonl:2, has 8")));
}

TEST_F(ReadExamplesTest, LongExamplesAreDroppedOrTruncatedAndCounted) {
  const auto dropped = read(kLengths, {.max_tokens = 5, .long_examples = LongExamples::kDrop});
  EXPECT_EQ(dropped.examples.size(), 2);
  EXPECT_EQ(dropped.examples.name(1), folder_ / "a.jsonl:4");
  EXPECT_EQ(dropped.too_long.dropped, 2);
  EXPECT_EQ(dropped.too_long.truncated, 0);
  EXPECT_EQ(dropped.too_long.longest, 8);

  const auto cut = read(kLengths, {.max_tokens = 5, .long_examples = LongExamples::kTruncate});
  EXPECT_EQ(cut.too_long.truncated, 2);
  EXPECT_THAT(cut.examples.tokens(1), ElementsAre(998, 'a', 'b', 'c', 'd'));
  EXPECT_THAT(cut.examples.learned(2), ElementsAre(0, 0, 0, 0, 1));

  // Of the third only its prompt is left: nothing to learn.
  const auto shorter = read(kLengths, {.max_tokens = 4, .long_examples = LongExamples::kTruncate});
  EXPECT_EQ(shorter.examples.size(), 3);
  EXPECT_EQ(shorter.too_long.truncated, 2);
  EXPECT_EQ(shorter.too_long.dropped, 1);

  EXPECT_THAT(input_error_of(
                  [&] { read(kLengths, {.max_tokens = 3, .long_examples = LongExamples::kDrop}); }),
              HasSubstr("all 4 examples are longer"));

  const auto none = read(kLengths, {.max_tokens = 8, .long_examples = LongExamples::kDrop});
  EXPECT_EQ(none.too_long.longest, 0);
}

}  // namespace
}  // namespace halfstep::data
