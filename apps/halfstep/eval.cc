// `halfstep eval`: loss and perplexity of a model on tokens or text.
#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.h"
#include "halfstep/comm/single_rank.h"
#include "halfstep/core/error.h"
#include "halfstep/train/evaluate.h"
#include "halfstep/train/loaded_model.h"
#include "halfstep/train/tokens.h"

namespace halfstep::apps {
namespace {

using train::LongExamples;

struct EvalOptions {
  train::ModelSource source;
  std::vector<std::string> data, data_path;
  std::string tokenizer;
  int64_t seq_length = 0, micro_batch_size = 8, max_sequences = 0;
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  std::optional<LongExamples> long_examples;
  bool json = false;
};

void run_eval(EvalOptions o) {
  if (o.data.empty() == o.data_path.empty()) {
    throw UsageError("which data? Got --data and --data-path both, or none",
                     "give --data FILE… (text or .jsonl) or --data-path PREFIX… (.bin/.idx)");
  }
  const bool examples = train::names_examples(o.data);
  if (examples && (o.reset_position_ids || o.reset_attention_mask || o.eod_mask_loss)) {
    throw UsageError(
        "--reset-position-ids, --reset-attention-mask and --eod-mask-loss have no effect on examples",
        "drop them: each example has its own attention and positions");
  }
  if (!examples && o.long_examples) {
    throw UsageError("--long-examples has no effect without examples",
                     "drop it, or give .jsonl files of examples in --data");
  }
  const train::LoadedModel loaded = train::load_model(o.source);
  if (o.tokenizer.empty() && !o.data.empty()) o.tokenizer = loaded.tokenizer;
  if (o.tokenizer.empty() && !o.data.empty()) {
    throw UsageError("the checkpoint does not say which tokenizer it was trained with",
                     "add --tokenizer byte or --tokenizer DIR");
  }
  if (o.seq_length == 0) o.seq_length = loaded.seq_length;
  if (o.seq_length == 0) {
    throw UsageError("--seq-length is missing", "a Hugging Face folder does not say it");
  }
  const auto tokens = train::load_tokens(
      {.data = o.data,
       .data_path = o.data_path,
       .tokenizer = o.tokenizer,
       .seq_length = o.seq_length,
       .long_examples = o.long_examples.value_or(LongExamples::kRefuse)});
  const train::SampleOptions options{.windows = {.seq_length = o.seq_length,
                                                 .eod_token = tokens.eod_token,
                                                 .reset_position_ids = o.reset_position_ids,
                                                 .reset_attention_mask = o.reset_attention_mask,
                                                 .eod_mask_loss = o.eod_mask_loss,
                                                 .vocab_size = loaded.config.vocab_size}};
  // All of them, in file order.
  const auto samples = train::make_samples(tokens, options, 0, "0,1,0", train::Split::kValidation);
  if (!samples) {
    throw InputError(
        fmt::format("the data are shorter than one sequence of {} tokens", o.seq_length),
        "give more data or a smaller --seq-length");
  }
  const int64_t all = samples->samples_per_epoch();
  comm::SingleRank alone;
  const train::Evaluation result =
      train::evaluate(*loaded.model, *samples, o.micro_batch_size,
                      o.max_sequences > 0 ? o.max_sequences : all, alone);
  if (!std::isfinite(result.loss())) {
    throw InputError("the loss is not finite",
                     "the weights are broken: load an earlier checkpoint");
  }
  if (o.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"loss", result.loss()},
                                              {"tokens", result.tokens},
                                              {"sequences", result.sequences}}
                           .dump());
    return;
  }
  fmt::print("loss {:.4f} | perplexity {:.4g} | {} tokens in {} sequences", result.loss(),
             std::exp(result.loss()), result.tokens, result.sequences);
  if (tokens.token_is_byte) fmt::print(" | {:.4f} bits per byte", result.loss() / std::log(2.0));
  fmt::print("\n");
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* command = app.add_subcommand("eval", "loss and perplexity of a model on tokens or text");
  auto o = std::make_shared<EvalOptions>();
  add_model_source(*command, o->source);
  command->add_option("--data", o->data, "text or .jsonl files; @LIST reads their names from a file")
      ->check(not_empty());
  command->add_option("--data-path", o->data_path, ".bin/.idx prefixes, [WEIGHT] PREFIX…")
      ->check(not_empty());
  command->add_option("--tokenizer", o->tokenizer, "byte or a folder; default: the checkpoint's")
      ->check(not_empty());
  command->add_option("--seq-length", o->seq_length, "default: the checkpoint's")
      ->check(CLI::PositiveNumber);
  command->add_option("--micro-batch-size", o->micro_batch_size, "sequences at once (8)")
      ->check(CLI::PositiveNumber);
  command->add_option("--max-sequences", o->max_sequences, "read no more than these; default: all")
      ->check(CLI::PositiveNumber);
  command->add_flag("--reset-position-ids", o->reset_position_ids,
                    "positions start anew in each document");
  command->add_flag("--reset-attention-mask", o->reset_attention_mask,
                    "attention does not cross documents");
  command->add_flag("--eod-mask-loss", o->eod_mask_loss,
                    "no loss on the token after the end of a document");
  command
      ->add_option("--long-examples", o->long_examples,
                   "examples longer than --seq-length: refuse (default), truncate or drop")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, LongExamples>{{"refuse", LongExamples::kRefuse},
                                              {"truncate", LongExamples::kTruncate},
                                              {"drop", LongExamples::kDrop}}));
  command->add_flag("--json", o->json, "one JSON document on stdout");
  command->callback([o] { run_eval(*o); });
}

}  // namespace halfstep::apps
