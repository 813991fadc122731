// Examples for fine-tuning out of .jsonl files, as tokens (docs/finetuning.md says which).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "halfstep/data/example_set.h"

namespace halfstep::data {

class Tokenizer;

struct ExampleReaderOptions {
  // What has a place in a row; longer ones are treated as `long_examples` says.
  int64_t max_tokens = std::numeric_limits<int64_t>::max();
  LongExamples long_examples = LongExamples::kRefuse;
  // Longer lines are refused.
  int64_t max_line_bytes = int64_t{1} << 30;
};

// The examples that are too long: how many, and what became of them.
struct LongExampleCounts {
  int64_t truncated = 0;
  int64_t dropped = 0;  // those that nothing was left to learn of included
  int64_t longest = 0;  // tokens
  std::string longest_name;
};

struct ReadExamples {
  ExampleSet examples;
  LongExampleCounts too_long;
};

// Lines of white space are passed over; every other one is an example or an InputError that names
// file and line. Memory is that of the tokens and of one batch of lines.
ReadExamples read_examples(const std::vector<std::string>& files, Tokenizer& tokenizer,
                           const ExampleReaderOptions& options);

}  // namespace halfstep::data
