// `halfstep data`: build, export, merge and verify Megatron's .bin/.idx pairs (docs/data.md).
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "halfstep/core/error.h"
#include "halfstep/data/documents.h"
#include "halfstep/data/indexed_dataset.h"
#include "halfstep/data/indexed_writer.h"
#include "halfstep/data/tokenizer.h"
#include "halfstep/data/verify.h"
#include "halfstep/io/file.h"
#include "process.h"

namespace halfstep::apps {
namespace {

using nlohmann::ordered_json;

// One JSON document on one line; bytes that are not UTF-8 become U+FFFD.
std::string json_line(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

struct BuildOptions {
  std::vector<std::string> inputs;
  std::string prefix, tokenizer = "byte", text_key = "text", on_bad_line = "fail";
  bool no_append_eod = false;
};

// The lines that were passed over, in PREFIX.bad.jsonl: made with the first one; without one, that
// of an earlier build is deleted.
class BadLines {
 public:
  explicit BadLines(const std::string& prefix) : path_(prefix + ".bad.jsonl") {}

  void add(const data::BadLine& line) {
    if (!file_) file_ = std::make_unique<io::AtomicFile>(path_);
    file_->write(json_line({{"file", line.file},
                            {"line", line.line},
                            {"reason", line.reason},
                            {"content", line.content}}));
    ++count_;
  }
  void finish() {
    if (!file_) {
      std::filesystem::remove(path_);
      return;
    }
    file_->commit();
    fmt::print("skipped {} bad lines, listed in {}\n", count_, path_);
  }

 private:
  std::string path_;
  std::unique_ptr<io::AtomicFile> file_;
  int64_t count_ = 0;
};

// A .bin read as text would be a document of noise.
void refuse_tokens(const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    if (!input.ends_with(".bin") && !input.ends_with(".idx")) continue;
    if (!std::filesystem::exists(data::idx_path(input.substr(0, input.size() - 4)))) continue;
    throw UsageError(fmt::format("--input {}: this is half of a .bin/.idx pair, not text", input),
                     "pairs are put together by halfstep data merge");
  }
}

void build(const BuildOptions& options) {
  refuse_tokens(options.inputs);
  const auto tokenizer = data::make_tokenizer(options.tokenizer);
  const data::TokenDtype dtype = data::token_dtype_for(tokenizer->vocab_size());
  BadLines bad_lines(options.prefix);
  data::DocumentOptions documents{.text_key = options.text_key};
  if (options.on_bad_line == "skip") {
    documents.on_bad_line = [&](const data::BadLine& line) { bad_lines.add(line); };
  }
  data::IndexedWriter writer(options.prefix, dtype);
  data::tokenize_documents(options.inputs, documents, *tokenizer, !options.no_append_eod,
                           [&](std::span<const int32_t> ids) { writer.add_document(ids); });
  writer.finish();
  bad_lines.finish();
  if (writer.num_documents() == 0) print_error("warning: no input has any text: no documents\n");
  fmt::print("{}.bin/.idx: {} documents, {} tokens, {}, vocabulary {}\n", options.prefix,
             writer.num_documents(), writer.num_tokens(), data::token_dtype_name(dtype),
             tokenizer->vocab_size());
}

void merge(const std::vector<std::string>& prefixes, const std::string& output) {
  std::unique_ptr<data::IndexedWriter> writer;
  for (const std::string& prefix : prefixes) {
    const data::IndexedDataset part(prefix);
    if (!writer) writer = std::make_unique<data::IndexedWriter>(output, part.index().dtype());
    writer->append(part);
  }
  writer->finish();
  fmt::print("{}.bin/.idx: {} documents, {} tokens\n", output, writer->num_documents(),
             writer->num_tokens());
}

// Writes documents as lines of JSON, many at a time: a tokenizer in another process is asked
// seldom.
class DocumentExporter {
 public:
  DocumentExporter(const std::string& prefix, data::Tokenizer* tokenizer, io::AtomicFile& file)
      : prefix_(prefix), tokenizer_(tokenizer), file_(file) {}

  void add(std::vector<int32_t> ids) {
    // The end marker has no text.
    if (tokenizer_ && !ids.empty() && ids.back() == tokenizer_->eod()) ids.pop_back();
    tokens_ += std::ssize(ids);
    documents_.push_back(std::move(ids));
    if (tokens_ >= kBatchTokens || documents_.size() >= kBatchDocuments) flush();
  }

  void flush() {
    if (tokenizer_) {
      for (std::string& text : tokenizer_->decode_batch(documents_)) write({{"text", text}});
    } else {
      for (const auto& ids : documents_) write({{"ids", ids}});
    }
    documents_.clear();
    tokens_ = 0;
  }

 private:
  static constexpr int64_t kBatchTokens = int64_t{1} << 20;
  static constexpr size_t kBatchDocuments = 4096;

  void write(const ordered_json& line) {
    try {
      file_.write(line.dump() + "\n");  // JSON can only hold UTF-8
    } catch (const ordered_json::type_error&) {
      throw InputError(fmt::format("{}: the text of document {} is not UTF-8", prefix_, written_),
                       "leave --tokenizer out to get its ids");
    }
    ++written_;
  }

  std::string prefix_;
  data::Tokenizer* tokenizer_;
  io::AtomicFile& file_;
  std::vector<std::vector<int32_t>> documents_;
  int64_t tokens_ = 0, written_ = 0;
};

void export_documents(const std::string& prefix, const std::string& tokenizer_name,
                      const std::string& output) {
  const data::IndexedDataset pair(prefix);
  const auto tokenizer = tokenizer_name.empty() ? nullptr : data::make_tokenizer(tokenizer_name);
  io::AtomicFile file(output);
  DocumentExporter exporter(prefix, tokenizer.get(), file);
  for (int64_t d = 0; d < pair.num_documents(); ++d) {
    std::vector<int32_t> ids(pair.document_start(d + 1) - pair.document_start(d));
    pair.read(pair.document_start(d), ids);
    exporter.add(std::move(ids));
  }
  exporter.flush();
  file.commit();
  fmt::print("{}: {} documents\n", output, pair.num_documents());
}

void verify(const std::string& prefix, std::optional<int64_t> vocab_size,
            std::optional<int64_t> eod, bool json) {
  const data::IndexedDataset pair(prefix);
  const data::DataReport report = data::verify(pair, vocab_size, eod);
  const std::string_view dtype = data::token_dtype_name(pair.index().dtype());
  if (json) {
    ordered_json out{{"documents", report.documents},
                     {"empty_documents", report.empty_documents},
                     {"sequences", report.sequences},
                     {"tokens", report.tokens},
                     {"dtype", dtype},
                     {"max_id", report.max_id}};
    if (eod) out["documents_with_eod"] = report.documents_with_eod;
    fmt::print("{}", json_line(out));
    return;
  }
  fmt::print(
      "{}: ok\n  documents  {} ({} empty), {} sequences\n  tokens     {} of {}, largest id {}\n",
      prefix, report.documents, report.empty_documents, report.sequences, report.tokens, dtype,
      report.max_id);
  if (eod) fmt::print("  end marker {} ends {} documents\n", *eod, report.documents_with_eod);
}

void add_build(CLI::App& data) {
  auto* command = data.add_subcommand("build", "text and JSONL files to a .bin/.idx pair");
  auto options = std::make_shared<BuildOptions>();
  command
      ->add_option("--input", options->inputs,
                   "FILE.jsonl: a document per line; other files: one each")
      ->required()
      ->check(not_empty());
  command->add_option("--output-prefix", options->prefix, "writes PREFIX.bin and PREFIX.idx")
      ->required()
      ->check(not_empty());
  command->add_option("--tokenizer", options->tokenizer, "byte, or a Hugging Face folder")
      ->check(not_empty())
      ->capture_default_str();
  command->add_option("--text-key", options->text_key, "the key of a JSONL line's text")
      ->capture_default_str();
  command
      ->add_option("--on-bad-line", options->on_bad_line,
                   "fail, or skip: leave it out and list it in PREFIX.bad.jsonl")
      ->check(CLI::IsMember({"fail", "skip"}))
      ->capture_default_str();
  command->add_flag("--no-append-eod", options->no_append_eod, "documents get no end marker");
  command->callback([options] { build(*options); });
}

void add_merge(CLI::App& data) {
  auto* command = data.add_subcommand("merge", "several .bin/.idx pairs of one type into one");
  auto prefixes = std::make_shared<std::vector<std::string>>();
  auto output = std::make_shared<std::string>();
  command->add_option("--input", *prefixes, "prefixes, in order")->required()->check(not_empty());
  command->add_option("--output-prefix", *output, "writes PREFIX.bin and PREFIX.idx")
      ->required()
      ->check(not_empty());
  command->callback([prefixes, output] { merge(*prefixes, *output); });
}

void add_export(CLI::App& data) {
  auto* command = data.add_subcommand("export", "a .bin/.idx pair to JSONL");
  auto prefix = std::make_shared<std::string>(), tokenizer = std::make_shared<std::string>(),
       output = std::make_shared<std::string>();
  command->add_option("prefix", *prefix, "the pair, without .bin or .idx")->required();
  command->add_option("--output", *output, "the file to write")->required()->check(not_empty());
  command
      ->add_option("--tokenizer", *tokenizer,
                   "byte or a Hugging Face folder: writes {\"text\"}; without it {\"ids\"}")
      ->check(not_empty());
  command->callback([=] { export_documents(*prefix, *tokenizer, *output); });
}

void add_verify(CLI::App& data) {
  auto* command = data.add_subcommand("verify", "check a .bin/.idx pair to the last token");
  auto prefix = std::make_shared<std::string>();
  auto vocab_size = std::make_shared<std::optional<int64_t>>(),
       eod = std::make_shared<std::optional<int64_t>>();
  auto json = std::make_shared<bool>(false);
  command->add_option("prefix", *prefix, "the pair, without .bin or .idx")->required();
  command->add_option("--vocab-size", *vocab_size, "every id must be below it")
      ->check(CLI::PositiveNumber);
  command->add_option("--eod", *eod, "the end marker that every document must end with")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--json", *json, "one JSON document on stdout");
  command->callback([=] { verify(*prefix, *vocab_size, *eod, *json); });
}

}  // namespace

void add_data(CLI::App& app) {
  auto* command =
      app.add_subcommand("data", "build, merge, export and verify .bin/.idx token files");
  command->require_subcommand(1);
  add_build(*command);
  add_merge(*command);
  add_export(*command);
  add_verify(*command);
}

}  // namespace halfstep::apps
