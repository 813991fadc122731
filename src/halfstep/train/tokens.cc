#include "halfstep/train/tokens.h"

#include <fmt/core.h>

#include <charconv>
#include <filesystem>
#include <sstream>

#include "halfstep/core/error.h"
#include "halfstep/data/indexed_dataset.h"
#include "halfstep/data/memory_dataset.h"
#include "halfstep/data/split.h"
#include "halfstep/data/tokenizer.h"
#include "halfstep/io/file.h"

namespace halfstep::train {
namespace {

std::vector<std::string> expand_lists(const std::vector<std::string>& data) {
  std::vector<std::string> files;
  for (const std::string& entry : data) {
    if (!entry.starts_with('@')) {
      files.push_back(entry);
      continue;
    }
    std::istringstream list(io::read_text_file(entry.substr(1)));
    for (std::string line; std::getline(list, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (line.find_first_not_of(" \t") != line.npos) files.push_back(line);
    }
  }
  if (files.empty()) throw InputError("--data names no file", "the lists are empty");
  return files;
}

std::shared_ptr<const data::TokenDataset> tokenize_files(const std::vector<std::string>& data,
                                                         data::Tokenizer& tokenizer) {
  const std::vector<std::string> files = expand_lists(data);
  const std::string name = files.size() == 1
                               ? files[0]
                               : fmt::format("{} and {} more files", files[0], files.size() - 1);
  auto dataset = std::make_shared<data::MemoryDataset>(name);
  for (const std::string& file : files) {
    if (file.ends_with(".jsonl")) {
      throw UsageError(
          fmt::format("{}: fine-tuning data are not implemented in this version", file),
          "give text files, or `halfstep data build` for JSON lines of documents");
    }
    std::vector<int32_t> ids = tokenizer.encode(io::read_text_file(file));
    if (ids.empty()) continue;
    if (tokenizer.eod() >= 0) ids.push_back(static_cast<int32_t>(tokenizer.eod()));
    dataset->add_document(ids);
  }
  return dataset;
}

bool is_number(const std::string& text, double& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

// "[WEIGHT] PREFIX …"
void open_prefixes(const std::vector<std::string>& data_path, TokenSources& tokens) {
  double weight = 0;
  bool weighted = false, pending = false;
  for (const std::string& entry : data_path) {
    // A file pair whose prefix reads as a number is still a prefix.
    if (!pending && !std::filesystem::exists(data::idx_path(entry)) && is_number(entry, weight)) {
      if (!(weight > 0)) {
        throw UsageError(fmt::format("--data-path: weight {} is not above 0", entry),
                         "leave out what is not to be read");
      }
      if (!tokens.datasets.empty() && !weighted) {
        throw UsageError("--data-path: a weight is missing", "give all prefixes a weight, or none");
      }
      pending = weighted = true;
      continue;
    }
    if (weighted && !pending) {
      throw UsageError(fmt::format("--data-path: no weight before {}", entry),
                       "give all prefixes a weight, or none");
    }
    auto dataset = std::make_shared<data::IndexedDataset>(entry);
    tokens.weights.push_back(weighted ? weight : static_cast<double>(dataset->num_tokens()));
    tokens.datasets.push_back(std::move(dataset));
    pending = false;
  }
  if (pending) {
    throw UsageError("--data-path ends with a weight", "expected [WEIGHT] PREFIX …");
  }
}

}  // namespace

TokenSources load_tokens(const std::vector<std::string>& data,
                         const std::vector<std::string>& data_path, const std::string& tokenizer) {
  TokenSources tokens;
  std::unique_ptr<data::Tokenizer> coder;
  if (!tokenizer.empty()) {
    coder = data::make_tokenizer(tokenizer);
    tokens.vocab_size = coder->vocab_size();
    tokens.eod_token = coder->eod();
    tokens.token_is_byte = tokenizer == "byte";
  }
  if (!data.empty()) {
    tokens.datasets = {tokenize_files(data, *coder)};
    tokens.weights = {1.0};
  } else {
    open_prefixes(data_path, tokens);
  }
  return tokens;
}

std::unique_ptr<data::SampleSource> make_samples(const TokenSources& tokens,
                                                 const data::WindowOptions& options, uint64_t seed,
                                                 const std::string& shares, Split split) {
  std::vector<data::WindowRange> sources;
  for (size_t k = 0; k < tokens.datasets.size(); ++k) {
    const int64_t windows = data::num_windows(*tokens.datasets[k], options.seq_length);
    const data::SampleRange range =
        data::split_windows(windows, shares)[static_cast<size_t>(split)];
    // The sampler explains an empty training split; another one is simply not there.
    if (range.count == 0 && split != Split::kTraining) continue;
    sources.push_back({tokens.datasets[k], range.first, range.count, tokens.weights[k]});
  }
  if (sources.empty()) return nullptr;
  return std::make_unique<data::WindowSampler>(std::move(sources), options, seed,
                                               split == Split::kTraining);
}

}  // namespace halfstep::train
