#include "halfstep/data/example_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "halfstep/core/error.h"
#include "halfstep/data/example_line.h"
#include "halfstep/data/line_reader.h"
#include "halfstep/data/tokenizer.h"

namespace halfstep::data {
namespace {

// A batch is what one request to the tokenizer holds: enough text to keep its threads busy.
constexpr size_t kBatchBytes = size_t{1} << 22;
constexpr size_t kBatchLines = 4096;

std::string place(const std::string& file, int64_t line) {
  return fmt::format("{}:{}", file, line);
}

// The tokens in front of a text, the prompt, the completion and the end marker, of which the last
// two are learned.
Example join(std::span<const int32_t> prefix, std::span<const int32_t> prompt,
             std::span<const int32_t> completion, int64_t eod) {
  Example example;
  for (const auto part : {prefix, prompt, completion}) {
    example.tokens.insert(example.tokens.end(), part.begin(), part.end());
  }
  example.tokens.push_back(static_cast<int32_t>(eod));
  example.learned.assign(example.tokens.size(), 1);
  std::fill_n(example.learned.begin(), prefix.size() + prompt.size(), 0);
  return example;
}

// Of several lines, in their order, with one request for the pairs and one for the chats.
std::vector<Example> encode(std::span<const ExampleLine> lines, Tokenizer& tokenizer) {
  std::vector<std::string_view> texts, chats;
  for (const ExampleLine& line : lines) {
    if (line.is_chat) {
      chats.push_back(line.chat);
    } else {
      texts.insert(texts.end(), {line.prompt, line.completion});
    }
  }
  const auto ids =
      texts.empty() ? std::vector<std::vector<int32_t>>{} : tokenizer.encode_batch(texts);
  auto encoded_chats = chats.empty() ? std::vector<Example>{} : tokenizer.encode_chats(chats);
  std::vector<Example> examples;
  size_t next_pair = 0, next_chat = 0;
  for (const ExampleLine& line : lines) {
    if (line.is_chat) {
      examples.push_back(std::move(encoded_chats[next_chat++]));
    } else {
      examples.push_back(
          join(tokenizer.prefix(), ids[next_pair], ids[next_pair + 1], tokenizer.eod()));
      next_pair += 2;
    }
  }
  return examples;
}

bool has_target(const Example& example) {
  return !example.learned.empty() &&
         std::find(example.learned.begin() + 1, example.learned.end(), 1) != example.learned.end();
}

class Reader {
 public:
  Reader(const std::vector<std::string>& files, Tokenizer& tokenizer,
         const ExampleReaderOptions& options)
      : files_(files), tokenizer_(tokenizer), options_(options), result_{ExampleSet(files), {}} {}

  ReadExamples read() {
    for (size_t file = 0; file < files_.size(); ++file) read_file(file);
    flush();
    if (num_too_long_ + result_.examples.size() == 0) {
      throw InputError(fmt::format("{}: no examples", fmt::join(files_, ", ")),
                       "give lines of JSON: see docs/finetuning.md");
    }
    if (num_too_long_ > 0 && options_.long_examples == LongExamples::kRefuse) refuse_long();
    if (result_.examples.size() == 0) {
      throw InputError(fmt::format("all {} examples are longer than --seq-length {}", num_too_long_,
                                   options_.max_tokens - 1),
                       "raise --seq-length");
    }
    return std::move(result_);
  }

 private:
  void read_file(size_t file) {
    const std::string& name = files_[file];
    LineReader reader(name, options_.max_line_bytes);
    for (std::string text; reader.next(text);) {
      if (reader.too_long()) {
        throw InputError(fmt::format("{}: more than {} bytes", place(name, reader.line_number()),
                                     options_.max_line_bytes));
      }
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      ExampleLine line = parse_example(text, place(name, reader.line_number()));
      if (!line.is_chat && tokenizer_.eod() < 0) {  // no fault of the line
        throw InputError("the tokenizer's folder names no end-of-document token (eos_token)",
                         "name one in its tokenizer_config.json: every completion ends with it");
      }
      line.file = static_cast<int64_t>(file);
      line.line = reader.line_number();
      batch_bytes_ += text.size();
      batch_.push_back(std::move(line));
      if (batch_bytes_ >= kBatchBytes || batch_.size() >= kBatchLines) flush();
    }
  }

  void flush() {
    const std::vector<Example> examples = encode_batch();
    for (size_t i = 0; i < batch_.size(); ++i) add(examples[i], batch_[i]);
    batch_.clear();
    batch_bytes_ = 0;
  }

  std::vector<Example> encode_batch() {
    try {
      return encode(batch_, tokenizer_);
    } catch (const InputError&) {
      // Which one was it? One at a time, until it fails again.
      std::vector<Example> examples;
      for (const ExampleLine& line : batch_) {
        try {
          examples.push_back(std::move(encode({&line, 1}, tokenizer_)[0]));
        } catch (const InputError& error) {
          throw InputError(fmt::format("{}: {}", name_of(line), error.what()), error.hint());
        }
      }
      return examples;
    }
  }

  void add(const Example& example, const ExampleLine& line) {
    if (!has_target(example)) {
      throw InputError(fmt::format("{}: nothing to learn: the tokenizer makes no token of it, or "
                                   "none that another one precedes",
                                   name_of(line)),
                       "give a prompt and a completion that have text");
    }
    const auto length = static_cast<int64_t>(example.tokens.size());
    if (length <= options_.max_tokens) return result_.examples.add(example, line.file, line.line);
    ++num_too_long_;
    LongExampleCounts& counts = result_.too_long;
    if (length > counts.longest) {
      counts.longest = length;
      counts.longest_name = name_of(line);
    }
    Example cut = example;
    cut.tokens.resize(options_.max_tokens);
    cut.learned.resize(options_.max_tokens);
    if (options_.long_examples == LongExamples::kTruncate && has_target(cut)) {
      ++counts.truncated;
      result_.examples.add(cut, line.file, line.line);
    } else {
      ++counts.dropped;
    }
  }

  [[noreturn]] void refuse_long() const {
    throw InputError(
        fmt::format("{} of {} examples have more than the {} tokens of --seq-length and one; the "
                    "longest, {}, has {}",
                    num_too_long_, num_too_long_ + result_.examples.size(), options_.max_tokens - 1,
                    result_.too_long.longest_name, result_.too_long.longest),
        "raise --seq-length, or say what becomes of them: --long-examples truncate or drop");
  }

  std::string name_of(const ExampleLine& line) const { return place(files_[line.file], line.line); }

  const std::vector<std::string>& files_;
  Tokenizer& tokenizer_;
  const ExampleReaderOptions& options_;
  ReadExamples result_;
  std::vector<ExampleLine> batch_;
  size_t batch_bytes_ = 0;
  int64_t num_too_long_ = 0;
};

}  // namespace

ReadExamples read_examples(const std::vector<std::string>& files, Tokenizer& tokenizer,
                           const ExampleReaderOptions& options) {
  return Reader(files, tokenizer, options).read();
}

}  // namespace halfstep::data
