// The tokens of a run, from --data or --data-path, and samples of their splits. Two kinds:
// documents for pre-training, and examples for fine-tuning (.jsonl files in --data).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "halfstep/data/example_reader.h"
#include "halfstep/data/sample_source.h"
#include "halfstep/data/token_dataset.h"
#include "halfstep/data/window_sampler.h"
#include "halfstep/train/options.h"

namespace halfstep::train {

// What is read, as the flags of these names say.
struct DataOptions {
  std::vector<std::string> data, data_path;
  std::string tokenizer;
  int64_t seq_length = 0;
  LongExamples long_examples = LongExamples::kRefuse;
};
DataOptions data_options(const Options& options);

// Whether --data names examples (.jsonl files). Throws UsageError for a mix with text files,
// InputError for a list that cannot be read.
bool names_examples(const std::vector<std::string>& data);

struct TokenSources {
  // Documents, or
  std::vector<std::shared_ptr<const data::TokenDataset>> datasets;
  std::vector<double> weights;  // by dataset
  int64_t vocab_size = 0;       // of the tokenizer, 0 if none was named
  int64_t eod_token = -1;
  // examples: null for documents.
  std::shared_ptr<const data::ExampleSet> examples;
  data::LongExampleCounts too_long;
  bool token_is_byte = false;  // so that a loss can be told in bits per byte
};

// `data`: text files, each one document that ends with the tokenizer's end marker, or @LIST, a file
// that names them one a line; or .jsonl files of examples. `data_path`: prefixes of .bin/.idx
// pairs, each after its weight, or none with a weight: then they count by their tokens. Throws
// InputError, UsageError.
TokenSources load_tokens(const DataOptions& options);

enum class Split : uint8_t { kTraining, kValidation, kTest };

// How samples are made of them. Examples use the seq_length and vocab_size of `windows` alone, and
// documents no packing.
struct SampleOptions {
  data::WindowOptions windows;
  bool packing = true;
};

// Samples of one split (`shares` as in --split, of windows or of examples), shuffled for training
// only. Null if the split has no samples; an empty training split is an InputError.
std::unique_ptr<data::SampleSource> make_samples(const TokenSources& tokens,
                                                 const SampleOptions& options, uint64_t seed,
                                                 const std::string& shares, Split split);

}  // namespace halfstep::train
