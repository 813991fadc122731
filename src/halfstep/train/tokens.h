// The tokens of a run, from --data or --data-path, and samples of their splits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "halfstep/data/token_dataset.h"
#include "halfstep/data/window_sampler.h"

namespace halfstep::train {

struct TokenSources {
  std::vector<std::shared_ptr<const data::TokenDataset>> datasets;
  std::vector<double> weights;  // by dataset
  int64_t vocab_size = 0;       // of the tokenizer, 0 if none was named
  int64_t eod_token = -1;
  bool token_is_byte = false;  // so that a loss can be told in bits per byte
};

// `data`: text files, each one document that ends with the tokenizer's end marker, or @LIST, a file
// that names them one a line. `data_path`: prefixes of .bin/.idx pairs, each after its weight, or
// none with a weight: then they count by their tokens. Throws InputError, UsageError.
TokenSources load_tokens(const std::vector<std::string>& data,
                         const std::vector<std::string>& data_path, const std::string& tokenizer);

enum class Split : uint8_t { kTraining, kValidation, kTest };

// Samples of one split (`shares` as in --split), shuffled for training only. Null if the split has
// no samples.
std::unique_ptr<data::SampleSource> make_samples(const TokenSources& tokens,
                                                 const data::WindowOptions& options, uint64_t seed,
                                                 const std::string& shares, Split split);

}  // namespace halfstep::train
