// Training runs of a tiny model inside the test process, and what they said.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halfstep/arch/parameter.h"
#include "halfstep/core/error.h"
#include "halfstep/core/test_folder.h"

namespace halfstep::testing {

using Args = std::vector<std::string>;
using Json = nlohmann::json;

struct RunResult {
  std::string terminal;
  std::vector<Json> events;        // of log.jsonl
  std::optional<ExitCode> failed;  // the code and the message of the Error that ended it
  std::string error;

  std::vector<Json> all(const std::string& event) const;
  // The values of a key over all log lines: losses, learning rates.
  std::vector<double> series(const std::string& key) const;
  // The only event of its kind.
  Json one(const std::string& event) const;
};

// A file of several documents' worth of text in `folder`.
std::string write_text(const TestFolder& folder, const std::string& name, int variant = 0);

// A 1-layer model on `text`, 6 steps of 2 sequences, each step logged; a few milliseconds a step.
Args tiny_run(const std::string& text);

// On top of it: BF16 everything, with stochastic rounding in states, gradients and (without a master)
// weights.
extern const Args kStochasticO2;

// `more` after `args`: what is given twice, the last one wins.
Args operator+(Args args, const Args& more);
// Without a flag and its one value.
Args without(Args args, const std::string& flag);

// What the elements of a parameter are.
using WeightValue = std::function<float(const arch::Parameter&, int64_t element)>;
WeightValue constant(float value);

// Saves the model that `args` describe, with byte tokens, as a Hugging Face folder of FP32 weights.
// Returns the flags of a run that loads it.
Args hf_run(const Args& args, const std::string& folder, const WeightValue& value);

// Runs to the end, or to the Error. Every run writes its log to a folder of its own unless `args`
// name one.
RunResult run(const Args& args);

// All bytes of the shards in a checkpoint.
std::string checkpoint_bytes(const std::string& step_folder);

}  // namespace halfstep::testing
