// A .jsonl file of fine-tuning examples, with the byte tokenizer: what is learned of each example
// is its completion and the end marker, or a part of that where long ones are truncated.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "halfstep/core/test_folder.h"
#include "halfstep/data/example_reader.h"
#include "halfstep/data/tokenizer.h"
#include "target.h"

namespace halfstep::fuzz {
namespace {

using data::ByteTokenizer;
using data::ExampleSet;
using data::LongExamples;

constexpr int64_t kMaxTokens = 60;

void check_set(const ExampleSet& examples) {
  int64_t tokens = 0, targets = 0;
  for (int64_t e = 0; e < examples.size(); ++e) {
    const auto ids = examples.tokens(e);
    const auto learned = examples.learned(e);
    check(ids.size() == learned.size() && examples.length(e) <= kMaxTokens, "it has a place");
    for (const int32_t id : ids) check(id >= 0 && id < ByteTokenizer::kVocabSize, "an id");
    for (const uint8_t flag : learned) check(flag <= 1, "learned or not");
    tokens += examples.length(e);
    const auto count = std::count(learned.begin() + 1, learned.end(), 1);
    check(count > 0, "something is learned of every example");
    targets += count;
  }
  check(tokens == examples.num_tokens() && targets == examples.num_targets(), "counts are right");
}

// The line that an example is from, by its name "FILE:LINE".
std::string_view line_of(std::string_view text, const std::string& name) {
  int64_t line = std::stoll(name.substr(name.rfind(':') + 1));
  while (--line > 0) text.remove_prefix(text.find('\n') + 1);
  return text.substr(0, text.find('\n'));
}

void check_completions(const ExampleSet& examples, std::string_view text) {
  for (int64_t e = 0; e < examples.size(); ++e) {
    const auto line = nlohmann::json::parse(line_of(text, examples.name(e)));
    std::string prompt, completion;
    const auto ids = examples.tokens(e);
    check(ids.back() == ByteTokenizer::kEod && examples.learned(e).back() == 1,
          "its end is learned");
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      (examples.learned(e)[i] == 1 ? completion : prompt) += static_cast<char>(ids[i]);
    }
    check(line.at("prompt") == prompt && line.at("completion") == completion, "its two texts");
  }
}

}  // namespace
}  // namespace halfstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace halfstep;
  static const TestFolder folder;
  const std::string_view text = fuzz::text_of(bytes, size);
  const std::string path = folder.write("e.jsonl", text);
  data::ByteTokenizer tokenizer;
  for (const auto mode :
       {fuzz::LongExamples::kRefuse, fuzz::LongExamples::kTruncate, fuzz::LongExamples::kDrop}) {
    const auto read = fuzz::accepted([&] {
      return data::read_examples(
          {path}, tokenizer,
          {.max_tokens = fuzz::kMaxTokens, .long_examples = mode, .max_line_bytes = 400});
    });
    if (!read) continue;
    fuzz::check_set(read->examples);
    if (mode != fuzz::LongExamples::kTruncate) fuzz::check_completions(read->examples, text);
  }
  return 0;
}
