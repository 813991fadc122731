#include "halfstep/data/documents.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "halfstep/core/error.h"
#include "halfstep/data/line_reader.h"
#include "halfstep/io/file.h"
#include "halfstep/io/json.h"

namespace halfstep::data {
namespace {

// A batch is what one request to the tokenizer holds: enough text to keep its threads busy.
constexpr size_t kBatchBytes = size_t{1} << 22;
constexpr size_t kBatchDocuments = 4096;
// 32-bit ids and lengths of 2^31 − 1 tokens end what one document can be.
constexpr int64_t kMaxTextFileBytes = (int64_t{1} << 31) - 1;
constexpr size_t kShownBytes = 4096;

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

void read_json_lines(const std::string& file, const DocumentOptions& options,
                     const std::function<void(Document&&)>& body) {
  LineReader reader(file, options.max_line_bytes);
  for (std::string line; reader.next(line);) {
    if (!reader.too_long() && is_blank(line)) continue;
    const std::string place = fmt::format("{}:{}", file, reader.line_number());
    Document document{.text = {}, .file = file, .line = reader.line_number()};
    try {
      if (reader.too_long()) {
        throw InputError(fmt::format("{}: more than {} bytes", place, options.max_line_bytes));
      }
      const nlohmann::json value = io::parse_json(line, place);
      document.text = io::JsonObject(value, place).string(options.text_key);
    } catch (const InputError& error) {
      if (!options.on_bad_line) {
        throw InputError(error.what(),
                         "correct the line, or pass over such lines: --on-bad-line skip");
      }
      line.resize(std::min(line.size(), kShownBytes));
      options.on_bad_line({file, reader.line_number(), error.what(), line});
      continue;
    }
    body(std::move(document));
  }
}

std::string name_of(const Document& document) {
  return document.line == 0 ? document.file : fmt::format("{}:{}", document.file, document.line);
}

// Collects documents and sends them through the tokenizer together.
class Batch {
 public:
  Batch(Tokenizer& tokenizer, bool append_eod,
        const std::function<void(std::span<const int32_t>)>& body)
      : tokenizer_(tokenizer), append_eod_(append_eod), body_(body) {}

  void add(Document&& document) {
    if (document.text.empty()) return;
    bytes_ += document.text.size();
    documents_.push_back(std::move(document));
    if (bytes_ >= kBatchBytes || documents_.size() >= kBatchDocuments) flush();
  }

  void flush() {
    std::vector<std::string_view> texts;
    for (const Document& document : documents_) texts.push_back(document.text);
    if (texts.empty()) return;
    for (auto& ids : encode(texts)) {
      if (append_eod_) ids.push_back(static_cast<int32_t>(tokenizer_.eod()));
      body_(ids);
    }
    documents_.clear();
    bytes_ = 0;
  }

 private:
  std::vector<std::vector<int32_t>> encode(std::span<const std::string_view> texts) {
    try {
      return tokenizer_.encode_batch(texts);
    } catch (const InputError&) {
      // Which one was it? One at a time, until it fails again.
      std::vector<std::vector<int32_t>> all;
      for (size_t i = 0; i < texts.size(); ++i) {
        try {
          all.push_back(tokenizer_.encode(texts[i]));
        } catch (const InputError& error) {
          throw InputError(fmt::format("{}: {}", name_of(documents_[i]), error.what()),
                           error.hint());
        }
      }
      return all;
    }
  }

  Tokenizer& tokenizer_;
  bool append_eod_;
  const std::function<void(std::span<const int32_t>)>& body_;
  std::vector<Document> documents_;
  size_t bytes_ = 0;
};

}  // namespace

void for_each_document(const std::vector<std::string>& files, const DocumentOptions& options,
                       const std::function<void(Document&&)>& body) {
  for (const std::string& file : files) {
    if (file.ends_with(".jsonl")) {
      read_json_lines(file, options, body);
    } else {
      body({.text = io::read_text_file(file, kMaxTextFileBytes), .file = file});
    }
  }
}

void tokenize_documents(const std::vector<std::string>& files, const DocumentOptions& options,
                        Tokenizer& tokenizer, bool append_eod,
                        const std::function<void(std::span<const int32_t>)>& body) {
  if (append_eod && tokenizer.eod() < 0) {
    throw InputError("the tokenizer's folder names no end-of-document token (eos_token)",
                     "name one in its tokenizer_config.json, or leave it out: --no-append-eod");
  }
  Batch batch(tokenizer, append_eod, body);
  for_each_document(files, options, [&](Document&& document) { batch.add(std::move(document)); });
  batch.flush();
}

}  // namespace halfstep::data
