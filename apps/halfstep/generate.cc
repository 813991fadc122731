// `halfstep generate`: continues a prompt, so that a person can see what was trained.
#include "halfstep/model/generate.h"

#include <fmt/core.h>

#include <cstdio>

#include "commands.h"
#include "halfstep/core/error.h"
#include "halfstep/data/tokenizer.h"
#include "halfstep/train/loaded_model.h"

namespace halfstep::apps {
namespace {

struct GenerateOptions {
  train::ModelSource source;
  std::string tokenizer, prompt;
  model::SamplingOptions sampling;
};

void run_generate(GenerateOptions o) {
  const train::LoadedModel loaded = train::load_model(o.source);
  if (o.tokenizer.empty()) o.tokenizer = loaded.tokenizer;
  if (o.tokenizer.empty()) {
    throw UsageError("the checkpoint does not say which tokenizer it was trained with",
                     "add --tokenizer byte or --tokenizer DIR");
  }
  const auto tokenizer = data::make_tokenizer(o.tokenizer);
  const std::vector<int32_t> ids = tokenizer->encode(o.prompt);
  std::vector<int64_t> prompt(ids.begin(), ids.end());
  // An empty prompt asks for the beginning of a document, which follows an end marker.
  if (prompt.empty() && tokenizer->eod() >= 0) prompt.push_back(tokenizer->eod());
  if (prompt.empty()) {
    throw UsageError("--prompt has no tokens, and the tokenizer no end marker to begin after",
                     "give a --prompt");
  }
  for (const int64_t id : prompt) {
    if (id >= loaded.config.vocab_size) {
      throw InputError(fmt::format("token {} of the prompt is outside the model's vocabulary of {}",
                                   id, loaded.config.vocab_size),
                       "give the tokenizer of this model: --tokenizer DIR");
    }
  }
  o.sampling.stop_token = tokenizer->eod();
  const auto generated = model::generate(*loaded.model, prompt, o.sampling);
  std::vector<int32_t> text;
  for (const int64_t id : generated) {
    // The end marker has no text, and neither have rows of a padded vocabulary.
    if (id != tokenizer->eod() && id < tokenizer->vocab_size()) {
      text.push_back(static_cast<int32_t>(id));
    }
  }
  fmt::print("{}{}\n", o.prompt, tokenizer->decode(text));
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* command = app.add_subcommand("generate", "greedy or sampled continuation of a prompt");
  auto o = std::make_shared<GenerateOptions>();
  add_model_source(*command, o->source);
  command->add_option("--tokenizer", o->tokenizer, "byte or a folder; default: the checkpoint's")
      ->check(not_empty());
  command->add_option("--prompt", o->prompt, "the text to continue")->required();
  command->add_option("--max-new-tokens", o->sampling.max_new_tokens, "stop after these (100)")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--temperature", o->sampling.temperature, "0 (default): the likeliest token")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--top-k", o->sampling.top_k, "sample among the k likeliest; 0: all")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", o->sampling.seed, "of the sampling");
  command->callback([o] { run_generate(*o); });
}

}  // namespace halfstep::apps
