#include "halfstep/train/check_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "halfstep/core/error.h"
#include "halfstep/train/flags.h"

namespace halfstep::train {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> small_run(std::vector<std::string> more) {
  std::vector<std::string> args{"--num-layers",
                                "2",
                                "--hidden-size",
                                "16",
                                "--ffn-hidden-size",
                                "32",
                                "--num-attention-heads",
                                "2",
                                "--seq-length",
                                "8",
                                "--micro-batch-size",
                                "2",
                                "--train-iters",
                                "20",
                                "--lr",
                                "1e-3",
                                "--tokenizer",
                                "byte",
                                "--data",
                                "a.txt"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Options checked(std::vector<std::string> more) {
  return checked_options(parse_flags(small_run(std::move(more))).options);
}

void expect_refused(std::vector<std::string> more, const std::string& what,
                    const std::string& hint) {
  const std::string shown = ::testing::PrintToString(more);
  try {
    checked(std::move(more));
    ADD_FAILURE() << shown << " was accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr(what)) << shown;
    EXPECT_THAT(error.hint(), HasSubstr(hint)) << shown;
  }
}

TEST(CheckOptions, FillsInTheGlobalBatch) {
  EXPECT_EQ(checked({}).global_batch_size, 2);
  EXPECT_EQ(checked({"--global-batch-size", "8"}).num_micro_batches(), 4);
}

TEST(CheckOptions, BothO2FlagsNameTheFlagToAdd) {
  expect_refused({"--o2-optimizer"}, "--o2-optimizer", "add --bf16");
  expect_refused({"--o2-gradient"}, "--o2-gradient", "add --bf16");
  expect_refused({"--o2-gradient", "--bf16"}, "--o2-gradient",
                 "add --no-gradient-accumulation-fusion");
  checked({"--o2-gradient", "--bf16", "--no-gradient-accumulation-fusion", "--o2-optimizer"});
}

TEST(CheckOptions, StorageFollowsTheFlags) {
  const Options o2 = checked({"--bf16", "--o2-optimizer", "--exp-avg-sq-dtype", "ue6m10"});
  EXPECT_EQ(o2.exp_avg_storage(), Dtype::kBF16);
  EXPECT_EQ(o2.exp_avg_sq_storage(), Dtype::kUE6M10);
  EXPECT_EQ(o2.master_mode(), MasterMode::kFp32);
  EXPECT_EQ(checked({"--bf16", "--reuse-fp32-param"}).master_mode(), MasterMode::kSplit);
  EXPECT_EQ(checked({}).master_mode(), MasterMode::kNone);
  EXPECT_EQ(checked({}).gradient_dtype(), Dtype::kF32);
}

TEST(CheckOptions, RefusesContradictionsAndFlagsWithoutEffect) {
  const std::vector<std::string> bf16{"--bf16"};
  expect_refused({"--bf16", "--master", "fp32", "--reuse-fp32-param"}, "contradicts --master fp32",
                 "one of them");
  expect_refused({"--reuse-fp32-param"}, "their own master", "--bf16");
  expect_refused({"--master", "split"}, "their own master", "--bf16");
  expect_refused({"--fp32-params", "norm"}, "no effect", "--bf16");
  expect_refused({"--bf16", "--fp32-params", "("}, "no regular expression", "ECMAScript");
  expect_refused(
      {"--bf16", "--o2-optimizer", "--exp-avg-dtype", "fp32", "--exp-avg-sq-dtype", "fp32"},
      "contradicts", "drop");
  expect_refused({"--state-rounding", "nearest"}, "no effect", "--o2-optimizer");
  expect_refused({"--grad-accumulation-rounding", "nearest"}, "no effect", "--o2-gradient");
  expect_refused({"--global-batch-size", "3"}, "no multiple", "change");
  expect_refused({"--group-query-attention"}, "needs --num-query-groups", "add");
  expect_refused({"--num-query-groups", "1"}, "no effect", "--group-query-attention");
  expect_refused({"--load-hf", "dir", "--init-method-std", "0.02"}, "no effect with --load-hf",
                 "drop");
  expect_refused({"--max-position-embeddings", "4"}, "less than --seq-length", "raise");
  // Also with the default's value.
  expect_refused({"--eval-iters", "0", "--eval-interval", "1000"}, "no effect", "--eval-iters");
  expect_refused({"--lr-decay-style", "constant", "--lr-decay-iters", "20"}, "no effect", "drop");
  // The warm-up is a fraction of these steps.
  checked({"--lr-decay-style", "constant", "--lr-decay-iters", "9", "--lr-warmup-fraction", ".1"});
  expect_refused({"--min-lr", "1"}, "above --lr", "lower");
  expect_refused({"--lr-warmup-iters", "2", "--lr-warmup-fraction", ".1"}, "together", "one");
  expect_refused({"--lr-warmup-iters", "20"}, "warm-up", "lower");
  expect_refused({"--lr-decay-style", "WSD"}, "--lr-wsd-decay-iters 0", "final fall");
  expect_refused({"--lr-wsd-decay-iters", "5"}, "without WSD", "WSD");
  expect_refused({"--save-interval", "5"}, "no effect without --save", "--save");
  expect_refused({"--save", "d", "--keep-every", "5"}, "without --keep-last", "--keep-last");
  expect_refused({"--no-load-optim"}, "no effect without --load", "--load");
  expect_refused({"--log-per-layer"}, "log.jsonl", "--log-dir");
  expect_refused({"--data-path", "x"}, "together", "--data-path");
  // --data of small_run is a text; lists are joined.
  expect_refused({"--no-packing"}, "no effect without examples", ".jsonl");
  expect_refused({"--long-examples", "refuse"}, "no effect without examples", ".jsonl");
  expect_refused({"--data", "b.jsonl"}, "b.jsonl is a file of examples, a.txt is not", "fine-tuning");
}

TEST(CheckOptions, FlagsOfDocumentsHaveNoEffectOnExamples) {
  std::vector<std::string> args = small_run({"--no-packing", "--long-examples", "drop"});
  std::replace(args.begin(), args.end(), std::string("a.txt"), std::string("a.jsonl"));
  EXPECT_TRUE(checked_options(parse_flags(args).options).no_packing);
  for (const char* flag : {"--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"}) {
    auto with = args;
    with.push_back(flag);
    EXPECT_THROW(checked_options(parse_flags(with).options), UsageError) << flag;
  }
}

TEST(CheckOptions, RefusesRoundingThatStallsUnlessAllowed) {
  const std::vector<std::string> nearest{"--bf16", "--o2-optimizer", "--state-rounding", "nearest"};
  EXPECT_THROW(checked(nearest), UsageError);
  auto allowed = nearest;
  allowed.push_back("--allow-stalling-rounding");
  checked(allowed);
  auto smaller_beta = nearest;
  smaller_beta.insert(smaller_beta.end(), {"--adam-beta2", "0.95"});
  checked(smaller_beta);
  smaller_beta.push_back("--allow-stalling-rounding");
  expect_refused(smaller_beta, "--allow-stalling-rounding has no effect", "drop");
  expect_refused({"--allow-stalling-rounding"}, "--allow-stalling-rounding has no effect", "drop");
  expect_refused({"--exp-avg-sq-dtype", "ue6m10", "--bf16", "--adam-eps", "1e-9"}, "1e-8", "raise");
}

TEST(CheckOptions, NamesWhatIsMissing) {
  for (const char* flag : {"num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads",
                           "seq-length", "micro-batch-size", "train-iters", "lr"}) {
    auto args = small_run({});
    const auto position = std::find(args.begin(), args.end(), std::string("--") + flag);
    args.erase(position, position + 2);
    try {
      checked_options(parse_flags(args).options);
      ADD_FAILURE() << flag;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(flag));
    }
  }
}

TEST(CheckOptions, RanksShareTheGlobalBatch) {
  const auto on_ranks = [](std::vector<std::string> more, int64_t ranks) {
    return checked_options(parse_flags(small_run(std::move(more))).options, ranks);
  };
  EXPECT_EQ(on_ranks({}, 4).global_batch_size, 8);
  EXPECT_EQ(on_ranks({"--global-batch-size", "24"}, 4).num_micro_batches(), 3);
  EXPECT_THROW(on_ranks({"--global-batch-size", "20"}, 4), UsageError);
  EXPECT_THROW(checked({"--o2-gradient", "--bf16", "--no-gradient-accumulation-fusion",
                        "--grad-wire-dtype", "fp32"}),
               UsageError);
  EXPECT_THAT(idle_on_one_rank(on_ranks({"--overlap-grad-reduce"}, 1)),
              testing::ElementsAre("overlap-grad-reduce"));
  EXPECT_TRUE(idle_on_one_rank(on_ranks({"--overlap-grad-reduce"}, 2)).empty());
}

TEST(CheckOptions, BucketsAreSizedInParametersOrBytes) {
  EXPECT_EQ(checked({}).ddp_bucket_bytes(), 32 << 20);
  EXPECT_EQ(checked({"--ddp-bucket-size", "1000"}).ddp_bucket_bytes(), 4000);
  EXPECT_EQ(checked({"--ddp-bucket-size", "4KiB"}).ddp_bucket_bytes(), 4096);
}

TEST(CheckOptions, DimensionsBecomeAModelConfig) {
  const Options o = checked({"--qk-layernorm", "--group-query-attention", "--num-query-groups", "1",
                             "--kv-channels", "32", "--make-vocab-size-divisible-by", "128"});
  const arch::ModelConfig config = model_config_from(o, 257);
  EXPECT_EQ(config.family, arch::Family::kQwen3);
  EXPECT_EQ(config.vocab_size, 384);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.num_query_groups, 1);
  EXPECT_EQ(config.max_position_embeddings, 8);
  EXPECT_TRUE(config.tie_embeddings);
  EXPECT_EQ(model_config_from(checked({"--add-qkv-bias"}), 257).family, arch::Family::kQwen2);
  EXPECT_EQ(model_config_from(checked({"--padded-vocab-size", "300"}), 257).vocab_size, 300);
  EXPECT_THROW(model_config_from(checked({"--padded-vocab-size", "256"}), 257), UsageError);
}

TEST(CheckOptions, DimensionsBesideAFolderMustBeItsOwn) {
  const std::vector<std::string> dimensions{"--num-layers",
                                            "2",
                                            "--hidden-size",
                                            "16",
                                            "--ffn-hidden-size",
                                            "32",
                                            "--num-attention-heads",
                                            "2",
                                            "--kv-channels",
                                            "8",
                                            "--group-query-attention",
                                            "--num-query-groups",
                                            "1",
                                            "--qk-layernorm",
                                            "--rotary-base",
                                            "1e6",
                                            "--max-position-embeddings",
                                            "64",
                                            "--make-vocab-size-divisible-by",
                                            "128"};
  const arch::ModelConfig config = model_config_from(checked(dimensions), 257);
  const auto beside = [&](std::vector<std::string> args) {
    check_dimensions(parse_flags(args).options, config, "load-hf");
  };
  beside({});
  beside(dimensions);
  beside({"--padded-vocab-size", "384", "--norm-epsilon", "1e-6"});
  beside({"--init-method-std", "0.5"});  // says nothing about weights that are there
  // The defaults' values count as given.
  for (const auto& [flag, value] : {std::pair{"--rotary-base", "10000"},
                                    {"--num-layers", "3"},
                                    {"--norm-epsilon", "1e-5"},
                                    {"--qk-layernorm", ""},
                                    {"--make-vocab-size-divisible-by", "256"},
                                    {"--padded-vocab-size", "257"},
                                    {"--num-query-groups", "2"}}) {
    const std::vector<std::string> args =
        *value ? std::vector<std::string>{flag, value}
               : std::vector<std::string>{std::string(flag) + "=false"};
    EXPECT_THAT([&] { beside(args); },
                ::testing::ThrowsMessage<UsageError>(HasSubstr(std::string(flag) + " is ")));
  }
}

}  // namespace
}  // namespace halfstep::train
