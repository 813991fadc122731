#include "halfstep/data/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halfstep/core/test_folder.h"
#include "halfstep/data/line_reader.h"
#include "halfstep/data/test_errors.h"

namespace halfstep::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> lines_of(const std::string& path, int64_t max_line_bytes) {
  LineReader reader(path, max_line_bytes);
  std::vector<std::string> lines;
  for (std::string line; reader.next(line);) {
    EXPECT_EQ(reader.line_number(), static_cast<int64_t>(lines.size()) + 1);
    lines.push_back(line + (reader.too_long() ? "…" : ""));
  }
  return lines;
}

TEST(LineReader, GivesEveryLineWithOrWithoutAFinalNewline) {
  const TestFolder folder;
  EXPECT_THAT(lines_of(folder.write("a", ""), 10), ElementsAre());
  EXPECT_THAT(lines_of(folder.write("a", "\n"), 10), ElementsAre(""));
  EXPECT_THAT(lines_of(folder.write("a", "one\n\ntwo"), 10), ElementsAre("one", "", "two"));
  EXPECT_THAT(lines_of(folder.write("a", "one\ntwo\n"), 10), ElementsAre("one", "two"));
}

TEST(LineReader, CutsLongLinesAndGoesOnBehindThem) {
  const TestFolder folder;
  EXPECT_THAT(lines_of(folder.write("a", "1234\n12345\n1"), 4), ElementsAre("1234", "1234…", "1"));
  // Longer than the buffer, and a line end on its last byte.
  const std::string text =
      std::string((1 << 20) - 1, 'x') + "\n" + std::string(3 << 20, 'y') + "\nz";
  EXPECT_THAT(lines_of(folder.write("b", text), 4), ElementsAre("xxxx…", "yyyy…", "z"));
  EXPECT_EQ(lines_of(folder / "b", 1 << 30)[1], std::string(3 << 20, 'y'));
}

std::vector<std::string> texts_of(const std::string& file, const DocumentOptions& options = {}) {
  std::vector<std::string> texts;
  for_each_document({file}, options, [&](Document&& d) { texts.push_back(d.text); });
  return texts;
}

TEST(Documents, AJsonLineIsOneDocument) {
  const TestFolder folder;
  const auto file = folder.write("a.jsonl",
                                 "{\"text\": \"one\", \"id\": 7}\r\n"
                                 "\n"
                                 "{\"text\": \"\\u00e4\\ud83d\\ude00\\n\"}\n"
                                 "  {\"text\": \"\", \"body\": \"x\"}");
  EXPECT_THAT(texts_of(file), ElementsAre("one", "ä😀\n", ""));
  EXPECT_THAT(texts_of(folder.write("b.jsonl", "{\"body\": \"x\"}"), {.text_key = "body"}),
              ElementsAre("x"));
}

TEST(Documents, AnyOtherFileIsOneDocument) {
  const TestFolder folder;
  EXPECT_THAT(texts_of(folder.write("a.py", "x = 1\n\xff\n")), ElementsAre("x = 1\n\xff\n"));
}

TEST(Documents, ABadLineIsNamed) {
  const TestFolder folder;
  const auto error = [&](std::string_view line) {
    const std::string text =
        "{\"text\": \"good\"}\n\n" + std::string(line) + "\n{\"text\": \"good\"}\n";
    const auto file = folder.write("a.jsonl", text);
    return input_error_of([&] { texts_of(file, {.max_line_bytes = 100}); });
  };
  EXPECT_THAT(error("{\"text\": \"cut o"), HasSubstr("a.jsonl:3"));
  EXPECT_THAT(error("[]"), HasSubstr("a.jsonl:3"));
  EXPECT_THAT(error("{\"txt\": \"x\"}"), AllOf(HasSubstr("a.jsonl:3"), HasSubstr("text")));
  EXPECT_THAT(error("{\"text\": 3}"), AllOf(HasSubstr("a.jsonl:3"), HasSubstr("text")));
  EXPECT_THAT(error("{\"text\": \"\xff\"}"), HasSubstr("a.jsonl:3"));
  EXPECT_THAT(error("{\"text\": \"\\ud800\"}"), HasSubstr("a.jsonl:3"));
  EXPECT_THAT(error("{\"text\": \"a\"} {\"text\": \"b\"}"), HasSubstr("a.jsonl:3"));
  EXPECT_THAT(error(std::string(101, ' ') + "{"), HasSubstr("more than 100 bytes"));
}

TEST(Documents, BadLinesAreCountedWhenSkipped) {
  const TestFolder folder;
  const auto file =
      folder.write("a.jsonl", "{\"text\": \"1\"}\n{\"text\": \"\n[1]\n{\"text\": \"4\"}");
  std::vector<int64_t> bad;
  const auto texts = texts_of(file, {.on_bad_line = [&](const BadLine& line) {
                                EXPECT_EQ(line.file, file);
                                EXPECT_FALSE(line.reason.empty());
                                EXPECT_EQ(line.content, line.line == 2 ? "{\"text\": \"" : "[1]");
                                bad.push_back(line.line);
                              }});
  EXPECT_THAT(texts, ElementsAre("1", "4"));
  EXPECT_THAT(bad, ElementsAre(2, 3));
}

// Refuses texts with an 'x', counts its calls.
class PickyTokenizer final : public Tokenizer {
 public:
  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string_view> texts) override {
    ++calls;
    for (const auto text : texts) {
      if (text.find('x') != text.npos) throw InputError("an x");
    }
    return ByteTokenizer().encode_batch(texts);
  }
  std::vector<std::string> decode_batch(std::span<const std::vector<int32_t>>) override {
    return {};
  }
  std::vector<Example> encode_chats(std::span<const std::string_view>) override { return {}; }
  ChatPrompt chat_prompt(std::string_view) override { return {}; }
  int64_t vocab_size() const override { return 257; }
  int64_t eod() const override { return eod_id; }
  std::span<const int32_t> prefix() const override { return {}; }
  int64_t calls = 0, eod_id = 256;
};

TEST(Documents, AreTokenizedTogetherAndEndedByTheMarker) {
  const TestFolder folder;
  const auto file =
      folder.write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\"}\n{\"text\": \"bc\"}\n");
  PickyTokenizer tokenizer;
  for (const bool append_eod : {false, true}) {
    std::vector<std::vector<int32_t>> all;
    tokenize_documents({file}, {}, tokenizer, append_eod, [&](std::span<const int32_t> ids) {
      all.emplace_back(ids.begin(), ids.end());
    });
    if (append_eod) {
      EXPECT_THAT(all, ElementsAre(ElementsAre('a', 256), ElementsAre('b', 'c', 256)));
    } else {
      EXPECT_THAT(all, ElementsAre(ElementsAre('a'), ElementsAre('b', 'c')));
    }
  }
  EXPECT_EQ(tokenizer.calls, 2);
}

TEST(Documents, BatchesAreBounded) {
  const TestFolder folder;
  const std::vector<std::string> files(9, folder.write("a.txt", std::string(1 << 20, 'a')));
  PickyTokenizer tokenizer;
  int64_t documents = 0;
  tokenize_documents(files, {}, tokenizer, true, [&](std::span<const int32_t>) { ++documents; });
  EXPECT_EQ(documents, 9);
  EXPECT_EQ(tokenizer.calls, 3);  // of 4 + 4 + 1 MiB
}

TEST(Documents, TheOneThatTheTokenizerRefusesIsNamed) {
  const TestFolder folder;
  const auto file = folder.write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"x\"}\n");
  PickyTokenizer tokenizer;
  const auto what =
      input_error_of([&] { tokenize_documents({file}, {}, tokenizer, true, [](auto) {}); });
  EXPECT_THAT(what, AllOf(HasSubstr("a.jsonl:2"), HasSubstr("an x")));
}

TEST(Documents, NoEndMarkerToAppendIsAnError) {
  PickyTokenizer tokenizer;
  tokenizer.eod_id = -1;
  EXPECT_NO_THROW(tokenize_documents({}, {}, tokenizer, false, [](auto) {}));
  EXPECT_THAT(input_error_of([&] { tokenize_documents({}, {}, tokenizer, true, [](auto) {}); }),
              HasSubstr("eos_token"));
}

}  // namespace
}  // namespace halfstep::data
