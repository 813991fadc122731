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
  bool chat = false, bos = false;
  model::SamplingOptions sampling;
};

// What the model is to continue, and the token after which it has said it.
data::ChatPrompt prompt_of(const GenerateOptions& o, data::Tokenizer& tokenizer) {
  data::ChatPrompt prompt;
  if (o.chat) {
    prompt = tokenizer.chat_prompt(o.prompt);
  } else {
    const auto prefix = tokenizer.prefix();
    if (o.bos && prefix.empty()) {
      throw UsageError(
          "--bos has no effect: the tokenizer puts no special token in front of a text", "drop it");
    }
    if (o.bos) prompt.tokens.assign(prefix.begin(), prefix.end());
    const std::vector<int32_t> ids = tokenizer.encode(o.prompt);
    prompt.tokens.insert(prompt.tokens.end(), ids.begin(), ids.end());
  }
  if (prompt.end < 0) prompt.end = tokenizer.eod();
  return prompt;
}

void run_generate(GenerateOptions o) {
  if (o.chat && o.bos) {
    throw UsageError("--bos has no effect with --chat", "drop it: the chat template writes it");
  }
  const train::LoadedModel loaded = train::load_model(o.source);
  if (o.tokenizer.empty()) o.tokenizer = loaded.tokenizer;
  if (o.tokenizer.empty()) {
    throw UsageError("the checkpoint does not say which tokenizer it was trained with",
                     "add --tokenizer byte or --tokenizer DIR");
  }
  const auto tokenizer = data::make_tokenizer(o.tokenizer);
  const data::ChatPrompt asked = prompt_of(o, *tokenizer);
  std::vector<int64_t> prompt(asked.tokens.begin(), asked.tokens.end());
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
  o.sampling.stop_token = asked.end;
  const auto generated = model::generate(*loaded.model, prompt, o.sampling);
  std::vector<int32_t> text;
  for (const int64_t id : generated) {
    // End markers are no text, and rows of a padded vocabulary have none.
    if (id != asked.end && id != tokenizer->eod() && id < tokenizer->vocab_size()) {
      text.push_back(static_cast<int32_t>(id));
    }
  }
  fmt::print("{}{}\n", o.chat ? "" : o.prompt, tokenizer->decode(text));
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* command = app.add_subcommand("generate", "greedy or sampled continuation of a prompt");
  auto o = std::make_shared<GenerateOptions>();
  add_model_source(*command, o->source);
  command->add_option("--tokenizer", o->tokenizer, "byte or a folder; default: the checkpoint's")
      ->check(not_empty());
  command->add_option("--prompt", o->prompt, "the text to continue")->required();
  command->add_flag("--chat", o->chat,
                    "--prompt is a message of the user: the tokenizer's chat template asks for the "
                    "answer, which alone is printed");
  command->add_flag("--bos", o->bos,
                    "put the tokenizer's own special tokens in front of the prompt, as fine-tuning "
                    "on {\"prompt\", \"completion\"} does");
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
