#include "halfstep/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "halfstep/core/test_folder.h"
#include "halfstep/data/pipe_tokenizer.h"
#include "halfstep/data/test_errors.h"

namespace halfstep::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ByteTokenizer, RoundTripsEveryByte) {
  ByteTokenizer tokenizer;
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  const auto ids = tokenizer.encode(all);
  ASSERT_EQ(ids.size(), 256u);
  for (int c = 0; c < 256; ++c) EXPECT_EQ(ids[c], c);
  EXPECT_EQ(tokenizer.decode(ids), all);
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
  EXPECT_EQ(tokenizer.vocab_size(), 257);
}

TEST(ByteTokenizer, TheEndMarkerHasNoText) {
  ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{'a', 256, 'b'}), "ab");
  EXPECT_THROW(tokenizer.decode(std::vector<int32_t>{257}), InputError);
  EXPECT_THROW(tokenizer.decode(std::vector<int32_t>{-1}), InputError);
}

TEST(MakeTokenizer, AFolderWithoutTokenizerIsNamed) {
  const TestFolder folder;
  EXPECT_THAT(input_error_of([&] { make_tokenizer(folder / ""); }), HasSubstr("tokenizer.json"));
}

// The other end of the pipe played by shell scripts. `printf` writes octal escapes in every sh.
PipeTokenizer child(const std::string& script, int64_t patience_ms = 20'000) {
  return PipeTokenizer("FOLDER", {"/bin/sh", "-c", script}, Subprocess::Duration(patience_ms));
}

std::string header(int code, int bytes) {
  return "printf 'hstk\\" + std::string(1, static_cast<char>('0' + code)) + "\\" +
         std::string{static_cast<char>('0' + bytes / 8), static_cast<char>('0' + bytes % 8)} +
         "\\0\\0\\0\\0\\0\\0\\0'; ";
}

// A greeting: the version, how many ids there are, the end marker, and one token in front of texts.
std::string greeting(char version = '3', char vocab_size = '5', char eod = '4', char prefix = '3') {
  const std::string zeros = "\\0\\0\\0\\0\\0\\0\\0";
  const auto number = [&](char digit, int bytes) {
    return std::string("\\") + digit + zeros.substr(0, 2 * (bytes - 1));
  };
  return header(0, 32) + "printf '" + number(version, 4) + number(vocab_size, 8) + number(eod, 8) +
         number('1', 8) + number(prefix, 4) + "'; ";
}
// Reads one request: the header, the number of texts, one length, and a text of one byte.
const std::string kReadOne = "head -c 30 > /dev/null; ";

std::string error_of_child(const std::string& script, int64_t patience_ms = 20'000) {
  return input_error_of([&] { child(script, patience_ms).encode("x"); });
}

TEST(PipeTokenizer, SpeaksTheProtocol) {
  auto tokenizer = child(greeting() + kReadOne + header(0, 16) +
                         "printf '\\2\\0\\0\\0\\0\\0\\0\\0\\3\\0\\0\\0\\4\\0\\0\\0'; " +
                         "head -c 49 > /dev/null; " + header(0, 18) +
                         "printf '\\2\\0\\0\\0\\0\\0\\0\\0hi\\0\\0\\0\\0\\0\\0\\0\\0'");
  EXPECT_EQ(tokenizer.vocab_size(), 5);
  EXPECT_EQ(tokenizer.eod(), 4);
  EXPECT_THAT(tokenizer.prefix(), ElementsAre(3));
  EXPECT_THAT(tokenizer.encode("x"), ElementsAre(3, 4));
  // Header, number of texts, two lengths, three ids.
  const std::vector<std::vector<int32_t>> ids{{3, 4}, {1}};
  EXPECT_THAT(tokenizer.decode_batch(ids), ElementsAre("hi", ""));
}

TEST(PipeTokenizer, AMissingInterpreterIsNamed) {
  EXPECT_THAT(input_error_of(
                  [] { PipeTokenizer("FOLDER", {"/nowhere/python"}, Subprocess::Duration(1000)); }),
              HasSubstr("cannot start '/nowhere/python'"));
}

TEST(PipeTokenizer, DeathIsReportedWithTheLastWords) {
  EXPECT_THAT(error_of_child("echo first >&2; echo no such module >&2; exit 3"),
              AllOf(HasSubstr("exit status 3"), HasSubstr("last words: no such module")));
  EXPECT_THAT(error_of_child(greeting() + "kill -9 $$"), HasSubstr("killed by signal 9"));
  EXPECT_THAT(error_of_child(greeting() + kReadOne + "exit 0"), HasSubstr("exit status 0"));
  // In the middle of an answer.
  EXPECT_THAT(error_of_child(greeting() + kReadOne + header(0, 16) + "printf '\\1\\0'"),
              HasSubstr("exit status 0"));
}

TEST(PipeTokenizer, SilenceEnds) {
  EXPECT_THAT(error_of_child("exec sleep 60", 200), HasSubstr("did not answer in time"));
  EXPECT_THAT(error_of_child(greeting() + "exec sleep 60", 200),
              HasSubstr("did not answer in time"));
}

TEST(PipeTokenizer, AChildThatDoesNotReadDoesNotBlockUs) {
  // More than a socket buffers. One child sleeps, one dies, one talks instead of reading.
  const std::string text(300'000, 'x');
  const auto send = [&](const std::string& script, int64_t patience_ms) {
    return input_error_of([&] { child(greeting() + script, patience_ms).encode(text); });
  };
  EXPECT_THAT(send("exec sleep 600", 500), HasSubstr("did not answer in time"));
  EXPECT_THAT(send("head -c 100000 > /dev/null; exit 4", 20'000), HasSubstr("exit status 4"));
  EXPECT_THAT(send("exec yes", 20'000), HasSubstr("answered before it was asked"));
}

TEST(PipeTokenizer, GarbageIsRefused) {
  EXPECT_THAT(error_of_child("echo Loading tokenizer, please wait"), HasSubstr("no answer"));
  EXPECT_THAT(error_of_child(header(5, 0)), HasSubstr("unknown answer 5"));
  EXPECT_THAT(error_of_child(header(0, 3) + "printf abc"), HasSubstr("greeting"));
  // Another version; no ids; an end marker, and a token in front, outside the vocabulary.
  for (const std::string& bad : {greeting('2'), greeting('3', '0'), greeting('3', '5', '5')}) {
    EXPECT_THAT(error_of_child(bad), HasSubstr("greeting"));
  }
  EXPECT_THAT(error_of_child(greeting('3', '5', '4', '5')), HasSubstr("the id 5"));
  EXPECT_THAT(
      error_of_child(header(0, 20) + greeting().substr(greeting().find("printf '\\3")) + "exit 0"),
      HasSubstr("truncated"));
  const std::string asked = greeting() + kReadOne;
  EXPECT_THAT(error_of_child(asked + header(0, 8) + "printf '\\1\\0\\0\\0\\0\\0\\0\\0'"),
              HasSubstr("truncated"));
  EXPECT_THAT(
      error_of_child(asked + header(0, 12) + "printf '\\1\\0\\0\\0\\0\\0\\0\\0\\5\\0\\0\\0'"),
      HasSubstr("the id 5"));
  EXPECT_THAT(error_of_child(asked + header(0, 9) + "printf '\\0\\0\\0\\0\\0\\0\\0\\0\\0'"),
              HasSubstr("more than was asked for"));
  const auto decoding = [&](const std::string& answer) {
    return input_error_of(
        [&] { child(greeting() + "head -c 33 > /dev/null; " + answer).decode({3}); });
  };
  EXPECT_THAT(decoding(header(0, 8) + "printf '\\1\\0\\0\\0\\0\\0\\0\\0'"), HasSubstr("truncated"));
  EXPECT_THAT(decoding(header(0, 10) + "printf '\\1\\0\\0\\0\\0\\0\\0\\0ab'"),
              HasSubstr("more than was asked for"));
  const auto chatting = [&](const std::string& answer) {
    const std::string_view chat = "{}";
    return input_error_of([&] {
      child(greeting() + "head -c 31 > /dev/null; " + answer).encode_chats({&chat, 1});
    });
  };
  EXPECT_THAT(chatting(header(0, 12) + "printf '\\1\\0\\0\\0\\0\\0\\0\\0\\2\\0\\0\\0'"),
              HasSubstr("without what is learned"));
  EXPECT_THAT(chatting(header(0, 13) + "printf '\\1\\0\\0\\0\\0\\0\\0\\0\\2\\0\\0\\0\\2'"),
              HasSubstr("without what is learned"));
  // An answer that claims 2^63 bytes must be neither allocated nor waited for.
  EXPECT_THAT(error_of_child(asked + "printf 'hstk\\0\\0\\0\\0\\0\\0\\0\\0\\200'; exec sleep 60"),
              HasSubstr("an answer of 9223372036854775808 bytes"));
}

TEST(PipeTokenizer, ConversationsComeWithWhatIsLearned) {
  auto tokenizer = child(greeting() + "head -c 31 > /dev/null; " + header(0, 18) +
                         "printf '\\2\\0\\0\\0\\0\\0\\0\\0\\3\\0\\0\\0\\4\\0\\0\\0\\0\\1'");
  const std::string_view chat = "{}";
  const std::vector<Example> examples = tokenizer.encode_chats({&chat, 1});
  ASSERT_EQ(examples.size(), 1u);
  EXPECT_THAT(examples[0].tokens, ElementsAre(3, 4));
  EXPECT_THAT(examples[0].learned, ElementsAre(0, 1));
}

TEST(PipeTokenizer, AChatPromptComesWithItsEnd) {
  const auto prompt = [](const std::string& end) {
    return child(greeting() + kReadOne + header(0, 20) +
                 "printf '\\1\\0\\0\\0\\0\\0\\0\\0\\3\\0\\0\\0" + end + "'")
        .chat_prompt("x");
  };
  EXPECT_THAT(prompt("\\4\\0\\0\\0\\0\\0\\0\\0").tokens, ElementsAre(3));
  EXPECT_EQ(prompt("\\4\\0\\0\\0\\0\\0\\0\\0").end, 4);
  EXPECT_EQ(prompt("\\377\\377\\377\\377\\377\\377\\377\\377").end, -1);
  EXPECT_THAT(input_error_of([&] { prompt("\\5\\0\\0\\0\\0\\0\\0\\0"); }),
              HasSubstr("no token that ends"));
}

TEST(PipeTokenizer, RefusalsOfTheChildKeepItAlive) {
  auto tokenizer = child(greeting() + kReadOne + header(1, 4) + "printf nope; " + kReadOne +
                         header(0, 8) + "printf '\\0\\0\\0\\0\\0\\0\\0\\0'");
  EXPECT_THAT(input_error_of([&] { tokenizer.encode("x"); }), HasSubstr("nope"));
  EXPECT_THAT(tokenizer.encode("x"), ElementsAre());
}

TEST(PipeTokenizer, AMissingPackageComesWithThePipLine) {
  try {
    child(header(2, 4) + "printf none");
    FAIL() << "expected an InputError";
  } catch (const InputError& error) {
    EXPECT_THAT(error.hint(), HasSubstr("pip install tokenizers jinja2"));
  }
}

TEST(PipeTokenizer, AfterAFailureEveryCallFails) {
  auto tokenizer = child(greeting() + kReadOne + "exit 0");
  EXPECT_THROW(tokenizer.encode("x"), InputError);
  EXPECT_THROW(tokenizer.encode("x"), InputError);
  EXPECT_THROW(tokenizer.decode(std::vector<int32_t>{1}), InputError);
}

}  // namespace
}  // namespace halfstep::data
