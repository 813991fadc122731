#include "halfstep/train/tokens.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include "halfstep/core/error.h"
#include "halfstep/data/example_sampler.h"
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

DataOptions data_options(const Options& o) {
  return {.data = o.data,
          .data_path = o.data_path,
          .tokenizer = o.tokenizer,
          .seq_length = o.seq_length,
          .long_examples = o.long_examples};
}

bool names_examples(const std::vector<std::string>& data) {
  if (data.empty()) return false;
  const std::vector<std::string> files = expand_lists(data);
  const auto is_jsonl = [](const std::string& file) { return file.ends_with(".jsonl"); };
  const auto count = std::count_if(files.begin(), files.end(), is_jsonl);
  if (count > 0 && count < std::ssize(files)) {
    throw UsageError(
        fmt::format("--data: {} is a file of examples, {} is not",
                    *std::find_if(files.begin(), files.end(), is_jsonl),
                    *std::find_if_not(files.begin(), files.end(), is_jsonl)),
        "give .jsonl files of examples (fine-tuning) or text files (pre-training)");
  }
  return count > 0;
}

TokenSources load_tokens(const DataOptions& options) {
  TokenSources tokens;
  const std::string& tokenizer = options.tokenizer;
  std::unique_ptr<data::Tokenizer> coder;
  if (!tokenizer.empty()) {
    coder = data::make_tokenizer(tokenizer);
    tokens.vocab_size = coder->vocab_size();
    tokens.eod_token = coder->eod();
    tokens.token_is_byte = tokenizer == "byte";
  }
  if (names_examples(options.data)) {
    auto read = data::read_examples(expand_lists(options.data), *coder,
                                    {.max_tokens = options.seq_length + 1,
                                     .long_examples = options.long_examples});
    tokens.examples = std::make_shared<data::ExampleSet>(std::move(read.examples));
    tokens.too_long = std::move(read.too_long);
  } else if (!options.data.empty()) {
    tokens.datasets = {tokenize_files(options.data, *coder)};
    tokens.weights = {1.0};
  } else {
    open_prefixes(options.data_path, tokens);
  }
  return tokens;
}

std::unique_ptr<data::SampleSource> make_samples(const TokenSources& tokens,
                                                 const SampleOptions& options, uint64_t seed,
                                                 const std::string& shares, Split split) {
  const bool shuffle = split == Split::kTraining;
  if (tokens.examples) {
    const int64_t all = tokens.examples->size();
    const data::SampleRange range = data::split_windows(all, shares)[static_cast<size_t>(split)];
    if (range.count == 0 && split != Split::kTraining) return nullptr;
    if (range.count == 0) {
      throw InputError(fmt::format("none of {} examples is for training", all),
                       "give more examples or another --split");
    }
    return std::make_unique<data::ExampleSampler>(
        tokens.examples,
        data::ExampleSamplerOptions{.seq_length = options.windows.seq_length,
                                    .packing = options.packing,
                                    .vocab_size = options.windows.vocab_size},
        seed, shuffle, range.first, range.count);
  }
  std::vector<data::WindowRange> sources;
  for (size_t k = 0; k < tokens.datasets.size(); ++k) {
    const int64_t windows = data::num_windows(*tokens.datasets[k], options.windows.seq_length);
    const data::SampleRange range =
        data::split_windows(windows, shares)[static_cast<size_t>(split)];
    // The sampler explains an empty training split; another one is simply not there.
    if (range.count == 0 && split != Split::kTraining) continue;
    sources.push_back({tokens.datasets[k], range.first, range.count, tokens.weights[k]});
  }
  if (sources.empty()) return nullptr;
  return std::make_unique<data::WindowSampler>(std::move(sources), options.windows, seed,
                                               shuffle);
}

}  // namespace halfstep::train
