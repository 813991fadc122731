// Every flag has an effect or is refused (docs/interface.md §2): one entry per setting of the flag
// table, and a test that fails for a setting without one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <set>

#include "halfstep/checkpoint/reader.h"
#include "halfstep/data/indexed_writer.h"
#include "halfstep/data/tokenizer.h"
#include "halfstep/io/file.h"
#include "halfstep/train/check_options.h"
#include "halfstep/train/flags.h"
#include "halfstep/train/run.h"
#include "run.h"

namespace halfstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What must differ between a run without the flag and one with it.
using Seen = std::function<void(const RunResult& base, const RunResult& with)>;

struct Effect {
  std::string flag;
  Args with;  // the flag and its value
  Seen seen;
  Args both = {};  // what both runs have on top of tiny_run
};

class FlagEffects : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TestFolder;
    text_ = write_text(*folder_, "text.txt");
  }
  static void TearDownTestSuite() { delete folder_; }

  static TestFolder* folder_;
  static std::string text_;
};
TestFolder* FlagEffects::folder_ = nullptr;
std::string FlagEffects::text_;

void both_run(const RunResult& base, const RunResult& with) {
  EXPECT_FALSE(base.failed) << base.error;
  EXPECT_FALSE(with.failed) << with.error;
}

Seen differs(const std::string& key) {
  return [key](const RunResult& base, const RunResult& with) {
    both_run(base, with);
    EXPECT_NE(base.series(key), with.series(key));
  };
}
const Seen kLoss = differs("loss");
const Seen kLearningRate = differs("lr");

// N changes.
void parameters_differ(const RunResult& base, const RunResult& with) {
  both_run(base, with);
  EXPECT_NE(base.one("memory")["parameters"], with.one("memory")["parameters"]);
}

int64_t class_bytes(const RunResult& run, const std::string& name, const std::string& dtype) {
  int64_t bytes = 0;
  const Json memory = run.one("memory");
  for (const Json& c : memory["classes"]) {
    if (c["class"] == name && c["dtype"] == dtype) bytes += c["measured_bytes"].get<int64_t>();
  }
  return bytes;
}

// A class is stored in `dtype` with the flag, to the byte, and without the flag it is not.
Seen stored(const std::string& name, const std::string& dtype, int64_t bytes_per_element) {
  return [=](const RunResult& base, const RunResult& with) {
    both_run(base, with);
    EXPECT_EQ(class_bytes(base, name, dtype), 0);
    EXPECT_EQ(class_bytes(with, name, dtype),
              bytes_per_element * with.one("memory")["elements"].get<int64_t>());
  };
}

// Refused without the flag, for a reason that names it, and accepted with it.
void allows(const RunResult& base, const RunResult& with) {
  EXPECT_TRUE(base.failed);
  EXPECT_FALSE(with.failed) << with.error;
}

Seen event_differs(const std::string& event, const std::string& key) {
  return [=](const RunResult& base, const RunResult& with) {
    both_run(base, with);
    EXPECT_NE(base.one(event)[key], with.one(event)[key]);
  };
}

Seen events(const std::string& event, size_t base_count, size_t with_count) {
  return [=](const RunResult& base, const RunResult& with) {
    EXPECT_EQ(base.all(event).size(), base_count) << base.error;
    EXPECT_EQ(with.all(event).size(), with_count) << with.error;
  };
}

Seen says(const std::string& text) {
  return [=](const RunResult& base, const RunResult& with) {
    EXPECT_THAT(base.terminal, Not(HasSubstr(text)));
    EXPECT_THAT(with.terminal, HasSubstr(text));
  };
}

std::vector<Effect> model_effects() {
  return {
      {"num-layers", {"--num-layers", "2"}, parameters_differ},
      {"hidden-size", {"--hidden-size", "24"}, parameters_differ},
      {"ffn-hidden-size", {"--ffn-hidden-size", "40"}, parameters_differ},
      {"num-attention-heads", {"--num-attention-heads", "4"}, parameters_differ},
      {"group-query-attention", {"--group-query-attention"}, allows, {"--num-query-groups", "1"}},
      {"num-query-groups", {"--num-query-groups", "1"}, allows, {"--group-query-attention"}},
      {"kv-channels", {"--kv-channels", "4"}, parameters_differ},
      {"qk-layernorm", {"--qk-layernorm"}, parameters_differ},
      {"add-qkv-bias", {"--add-qkv-bias"}, parameters_differ},
      {"rotary-base", {"--rotary-base", "100"}, kLoss},
      {"norm-epsilon", {"--norm-epsilon", "0.1"}, kLoss},
      {"max-position-embeddings",
       {"--max-position-embeddings", "64"},
       says("\"max_position_embeddings\": 64"),
       {"--check-config"}},
      {"padded-vocab-size", {"--padded-vocab-size", "300"}, parameters_differ},
      {"make-vocab-size-divisible-by", {"--make-vocab-size-divisible-by", "64"}, parameters_differ},
      {"untie-embeddings-and-output-weights",
       {"--untie-embeddings-and-output-weights"},
       parameters_differ},
      {"init-method-std", {"--init-method-std", "0.1"}, kLoss},
  };
}

std::vector<Effect> run_effects(const TestFolder& folder) {
  return {
      {"data", {"--data", write_text(folder, "other.txt", 3)}, kLoss},
      {"tokenizer",
       {"--tokenizer", folder / "nowhere"},
       [](const RunResult& base, const RunResult& with) {
         EXPECT_FALSE(base.failed) << base.error;
         EXPECT_EQ(with.failed, ExitCode::kBadInput);
       }},
      {"split", {"--split", "50,50,0"}, kLoss},
      {"seq-length", {"--seq-length", "8"}, kLoss},
      {"reset-position-ids",
       {"--reset-position-ids"},
       kLoss,
       {"--data", folder / "two_a", folder / "two_b"}},
      {"reset-attention-mask",
       {"--reset-attention-mask"},
       kLoss,
       {"--data", folder / "two_a", folder / "two_b"}},
      {"eod-mask-loss", {"--eod-mask-loss"}, kLoss, {"--data", folder / "two_a", folder / "two_b"}},
      {"no-packing", {"--no-packing"}, kLoss, {"--data", folder / "examples.jsonl"}},
      {"long-examples",
       {"--long-examples", "drop"},
       allows,
       {"--data", folder / "long_examples.jsonl"}},
      {"micro-batch-size",
       {"--micro-batch-size", "4"},
       says("a step reads 1 x 4"),
       {"--global-batch-size", "4"}},
      {"global-batch-size", {"--global-batch-size", "4"}, kLoss},
      {"train-iters", {"--train-iters", "7"}, events("step", 6, 7)},
      {"seed", {"--seed", "7"}, kLoss},
      {"num-threads", {"--num-threads", "2"}, event_differs("start", "threads")},
      {"matmul-precision", {"--matmul-precision", "bf16"}, event_differs("start", "compute")},
      {"exit-duration-in-mins", {"--exit-duration-in-mins", "1e-9"}, events("step", 6, 1)},
      {"eval-interval", {"--eval-interval", "2"}, events("eval", 1, 3), {"--eval-iters", "1"}},
      {"eval-iters", {"--eval-iters", "2"}, events("eval", 0, 1)},
      {"log-interval", {"--log-interval", "3"}, events("step", 6, 2)},
      {"log-dir",
       {"--log-dir", folder / "logs"},
       [&folder](const RunResult&, const RunResult& with) {
         EXPECT_FALSE(with.events.empty());
         EXPECT_TRUE(std::ifstream(folder / "logs/log.jsonl").good());
       }},
      {"log-per-layer",
       {"--log-per-layer", "--log-dir", folder / "norms"},
       [](const RunResult& base, const RunResult& with) {
         EXPECT_FALSE(base.all("step").at(0).contains("norms"));
         const Json norms = with.all("step").at(0)["norms"]["model.layers.0.mlp.up_proj.weight"];
         EXPECT_GT(norms["gradient"].get<double>(), 0);
         EXPECT_GT(norms["weight"].get<double>(), 0);
       }},
      {"log-samples",
       {"--log-samples", "--log-dir", folder / "samples"},
       [](const RunResult& base, const RunResult& with) {
         EXPECT_TRUE(base.all("samples").empty());
         ASSERT_EQ(with.all("samples").size(), 6u);
         EXPECT_EQ(with.all("samples")[0]["ids"].size(), 2u);
         EXPECT_NE(with.all("samples")[0]["ids"], with.all("samples")[1]["ids"]);
       }},
      {"quiet",
       {"--quiet"},
       [](const RunResult& base, const RunResult& with) {
         EXPECT_THAT(base.terminal, HasSubstr("bytes per parameter"));
         EXPECT_THAT(with.terminal, Not(HasSubstr("bytes per parameter")));
         EXPECT_THAT(with.terminal, HasSubstr("step 6/6"));
       }},
      {"check-config", {"--check-config"}, events("step", 6, 0)},
  };
}

std::vector<Effect> optimizer_effects() {
  const Args o2{"--bf16", "--o2-optimizer"};
  const Args o2_gradient{"--bf16", "--o2-gradient", "--no-gradient-accumulation-fusion"};
  const Args wsd{"--lr-decay-style", "WSD", "--lr-wsd-decay-iters", "4"};
  return {
      {"lr", {"--lr", "2e-2"}, kLoss},
      {"min-lr", {"--min-lr", "1e-3"}, kLearningRate},
      {"lr-decay-style", {"--lr-decay-style", "cosine"}, kLearningRate},
      {"lr-decay-iters", {"--lr-decay-iters", "12"}, kLearningRate},
      {"lr-wsd-decay-iters", {"--lr-wsd-decay-iters", "2"}, kLearningRate, wsd},
      {"lr-wsd-decay-style", {"--lr-wsd-decay-style", "cosine"}, kLearningRate, wsd},
      {"lr-warmup-iters", {"--lr-warmup-iters", "3"}, kLearningRate},
      {"lr-warmup-fraction", {"--lr-warmup-fraction", "0.5"}, kLearningRate},
      {"weight-decay", {"--weight-decay", "1"}, kLoss},
      {"adam-beta1", {"--adam-beta1", "0.5"}, kLoss},
      {"adam-beta2", {"--adam-beta2", "0.5"}, kLoss},
      {"adam-eps", {"--adam-eps", "1"}, kLoss},
      {"clip-grad", {"--clip-grad", "0.01"}, differs("clip")},
      // A learning rate at which the second step is not finite.
      {"max-skipped-steps",
       {"--max-skipped-steps", "2"},
       events("skipped", 4, 2),
       {"--lr", "1e30", "--max-skipped-steps", "4"}},
      {"bf16", {"--bf16"}, stored("weights", "bf16", 2)},
      {"o2-optimizer", {"--o2-optimizer"}, stored("exp_avg_sq", "bf16", 2), {"--bf16"}},
      {"o2-gradient",
       {"--o2-gradient"},
       stored("gradients", "bf16", 2),
       {"--bf16", "--no-gradient-accumulation-fusion"}},
      {"no-gradient-accumulation-fusion",
       {"--no-gradient-accumulation-fusion"},
       says("fusion    off")},
      {"exp-avg-dtype", {"--exp-avg-dtype", "bf16"}, stored("exp_avg", "bf16", 2)},
      {"exp-avg-sq-dtype", {"--exp-avg-sq-dtype", "ue6m10"}, stored("exp_avg_sq", "ue6m10", 2)},
      {"state-rounding",
       {"--state-rounding", "stochastic"},
       kLoss,
       o2 + Args{"--adam-beta2", "0.95"}},
      {"allow-stalling-rounding",
       {"--allow-stalling-rounding"},
       allows,
       o2 + Args{"--state-rounding", "nearest"}},
      {"grad-accumulation-rounding",
       {"--grad-accumulation-rounding", "stochastic"},
       kLoss,
       o2_gradient + Args{"--global-batch-size", "8"}},
      {"fp32-params",
       {"--fp32-params", "norm"},
       [](const RunResult& base, const RunResult& with) {
         EXPECT_EQ(class_bytes(base, "weights", "fp32"), 0);
         EXPECT_GT(class_bytes(with, "weights", "fp32"), 0);
         EXPECT_GT(class_bytes(with, "exp_avg", "fp32"), 0);
       },
       o2},
      {"master", {"--master", "split"}, stored("master", "int16", 2), {"--bf16"}},
      {"reuse-fp32-param", {"--reuse-fp32-param"}, stored("master", "int16", 2), {"--bf16"}},
  };
}

// Settings whose effect needs more than two runs side by side; each has a test below.
const std::set<std::string> kTestedBelow{"load-hf", "data-path", "tokenizer-name-or-path", "save",
                                         "save-interval", "load", "async-save", "keep-last",
                                         "keep-every", "no-load-optim", "no-load-rng",
                                         "convert-state", "allow-lossy-master",
                                         // resume_test.cc
                                         "resume-hparams", "allow-data-change", "finetune"};

TEST_F(FlagEffects, EverySettingHasATest) {
  std::set<std::string> tested = kTestedBelow;
  for (const auto& effects : {model_effects(), run_effects(*folder_), optimizer_effects()}) {
    for (const Effect& effect : effects) tested.insert(effect.flag);
  }
  for (const train::Flag& flag : train::flag_table()) {
    if (flag.kind != train::Flag::Kind::kSetting) continue;
    if (flag.group == train::kRanksGroup) continue;  // tests/dist/test_training.py
    EXPECT_EQ(tested.count(flag.name), 1u) << "no test sees an effect of --" << flag.name;
  }
}

// `more` after `args`; its --data take the place of theirs, where lists would be joined.
Args replacing_data(const Args& args, const Args& more) {
  const bool data = std::find(more.begin(), more.end(), "--data") != more.end();
  return (data ? without(args, "--data") : args) + more;
}

void check_effects(const std::vector<Effect>& effects, const std::string& text) {
  for (const Effect& effect : effects) {
    SCOPED_TRACE("--" + effect.flag);
    const Args base = replacing_data(tiny_run(text), effect.both);
    effect.seen(run(base), run(replacing_data(base, effect.with)));
  }
}

TEST_F(FlagEffects, Model) { check_effects(model_effects(), text_); }

TEST_F(FlagEffects, Running) {
  for (const char* name : {"two_a", "two_b"}) {
    // Documents that are shorter than a sequence, so that every sequence has a boundary.
    std::ofstream(*folder_ / name) << "seven words";
  }
  std::ofstream examples(*folder_ / "examples.jsonl");
  std::ofstream long_examples(*folder_ / "long_examples.jsonl");
  for (int i = 0; i < 40; ++i) {
    const std::string words = std::string("two words").substr(i % 6);
    examples << R"({"prompt": "a", "completion": ")" << words << "\"}\n";
    long_examples << R"({"prompt": "a", "completion": ")" << (i % 9 ? words : words + words + words)
                  << "\"}\n";
  }
  examples.close();
  long_examples.close();
  // Their 24 tokens are one sequence of 16, all of it for training.
  check_effects(run_effects(*folder_), text_);
}

TEST_F(FlagEffects, Optimizer) { check_effects(optimizer_effects(), text_); }

// Accepted flags without a meaning are listed with their reason, or their value is checked; refused
// ones are refused.
TEST_F(FlagEffects, TheOthersAreListedOrRefused) {
  for (const train::Flag& flag : train::flag_table()) {
    SCOPED_TRACE("--" + flag.name);
    Args args{"--" + flag.name};
    if (flag.arity != train::Flag::Arity::kSwitch) args.push_back(flag.value);
    if (flag.kind == train::Flag::Kind::kNothingToDo) {
      const auto parsed = train::parse_flags(args);
      ASSERT_EQ(parsed.nothing_to_do.size(), 1u);
      EXPECT_EQ(parsed.nothing_to_do[0]->name, flag.name);
      EXPECT_EQ(train::settings_json(parsed.options), train::settings_json({}));
    } else if (flag.kind == train::Flag::Kind::kRefused) {
      EXPECT_THROW(train::parse_flags(args), UsageError);
    }
  }
}

TEST_F(FlagEffects, DataPathReadsTheSameTokensAsTheTextTheyCameFrom) {
  data::ByteTokenizer tokenizer;
  std::vector<int32_t> ids = tokenizer.encode(io::read_text_file(text_));
  ids.push_back(data::ByteTokenizer::kEod);
  data::IndexedWriter writer(*folder_ / "tokens", data::TokenDtype::kUint16);
  writer.add_document(ids);
  writer.finish();
  const Args args = without(tiny_run(text_), "--data") + Args{"--data-path", *folder_ / "tokens"};
  const RunResult from_tokens = run(args);
  EXPECT_FALSE(from_tokens.failed) << from_tokens.error;
  EXPECT_EQ(from_tokens.series("loss"), run(tiny_run(text_)).series("loss"));
}

TEST_F(FlagEffects, TokenizerHasASecondName) {
  const Args args = without(tiny_run(text_), "--tokenizer");
  EXPECT_EQ(run(args).failed, ExitCode::kUsage);
  EXPECT_FALSE(run(args + Args{"--tokenizer-name-or-path", "byte"}).failed);
}

TEST_F(FlagEffects, LoadHfStartsFromItsWeights) {
  // All zero: every token is equally likely, whatever the text.
  const RunResult from_hf = run(hf_run(tiny_run(text_), *folder_ / "hf_zero", constant(0)));
  ASSERT_FALSE(from_hf.failed) << from_hf.error;
  // ln 257 from sums of 32 FP32 terms: 16 ulp of the sum, and the log's own.
  EXPECT_NEAR(from_hf.series("loss")[0], std::log(257.0), std::log(257.0) * 20 * 0x1p-23);
}

// The dimensions of tiny_run stand beside the folder of the same model: they agree with it.
TEST_F(FlagEffects, LoadHfRefusesOtherDimensionsThanItsOwn) {
  const Args args = hf_run(tiny_run(text_), *folder_ / "hf_dimensions", constant(0));
  EXPECT_FALSE(run(args + Args{"--rotary-base", "10000"}).failed);
  for (const auto& [flag, value] : {std::pair{"--rotary-base", "500"}, {"--num-layers", "2"}}) {
    const RunResult result = run(args + Args{flag, value});
    EXPECT_EQ(result.failed, ExitCode::kUsage);
    EXPECT_THAT(result.error, HasSubstr("drop " + std::string(flag)));
  }
}

TEST_F(FlagEffects, LoadHfRefusesSequencesLongerThanItsPositions) {
  const RunResult result = run(hf_run(tiny_run(text_), *folder_ / "hf_short", constant(0)) +
                               Args{"--seq-length", "4096"});
  EXPECT_EQ(result.failed, ExitCode::kUsage);
  EXPECT_NE(result.error.find("--seq-length 4096"), std::string::npos) << result.error;
}

TEST_F(FlagEffects, LoadHfKeepsTheBitsOfFp32WeightsInTheMaster) {
  const float third = 1.0f / 3;  // no BF16 number, and no tie between two
  for (const std::string master : {"fp32", "split"}) {
    SCOPED_TRACE(master);
    // A step too small to change any bit.
    const RunResult result =
        run(hf_run(tiny_run(text_), *folder_ / ("hf_third_" + master), constant(third)) +
            Args{"--bf16", "--master", master, "--lr", "1e-30", "--train-iters", "1", "--save",
                 *folder_ / ("third_" + master)});
    ASSERT_FALSE(result.failed) << result.error;
    const checkpoint::CheckpointReader reader(*folder_ / ("third_" + master));
    std::vector<float> values(16);
    checkpoint::MutableSlice slice;
    static_cast<checkpoint::Slice&>(slice) = checkpoint::whole_slice(
        checkpoint::TensorKind::kMaster, "model.norm.weight", {16}, Dtype::kF32);
    slice.data = values.data();
    reader.load({&slice, 1}, {.convert_state = true, .allow_unrequested = true});
    EXPECT_EQ(values, std::vector<float>(16, third));
  }
}

class Checkpoints : public FlagEffects {
 protected:
  Args args(const Args& more) const { return tiny_run(text_) + Args{"--train-iters", "8"} + more; }
  std::set<std::string> steps(const std::string& name) const {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(own_ / name)) {
      if (entry.is_directory()) found.insert(entry.path().filename().string());
    }
    return found;
  }
  TestFolder own_;
};

TEST_F(Checkpoints, SaveAndItsIntervalAndRetention) {
  using ::testing::ElementsAre;
  run(args({"--save", own_ / "end"}));
  EXPECT_THAT(steps("end"), ElementsAre("step_00000008"));
  run(args({"--save", own_ / "all", "--save-interval", "3"}));
  EXPECT_THAT(steps("all"), ElementsAre("step_00000003", "step_00000006", "step_00000008"));
  run(args({"--save", own_ / "last", "--save-interval", "2", "--keep-last", "2"}));
  EXPECT_THAT(steps("last"), ElementsAre("step_00000006", "step_00000008"));
  run(args(
      {"--save", own_ / "every", "--save-interval", "2", "--keep-last", "1", "--keep-every", "4"}));
  EXPECT_THAT(steps("every"), ElementsAre("step_00000004", "step_00000008"));
}

// The same checkpoints at the same steps, but for the setting itself.
TEST_F(Checkpoints, AsyncSaveWritesTheSameFilesFromACopyThatIsCounted) {
  EXPECT_EQ(run(args({"--async-save"})).failed, ExitCode::kUsage);
  const Args saving = args({"--bf16", "--reuse-fp32-param", "--save-interval", "3", "--save"});
  const RunResult sync = run(saving + Args{own_ / "sync"});
  const RunResult async = run(saving + Args{own_ / "async", "--async-save"});
  ASSERT_FALSE(async.failed) << async.error;
  for (const std::string step : {"step_00000003", "step_00000006", "step_00000008"}) {
    EXPECT_EQ(checkpoint_bytes(own_ / ("async/" + step)),
              checkpoint_bytes(own_ / ("sync/" + step)));
    Json manifests[2];
    for (const int i : {0, 1}) {
      manifests[i] = Json::parse(
          io::read_text_file(own_ / ((i == 0 ? "sync/" : "async/") + step + "/manifest.json")));
      EXPECT_EQ(manifests[i]["hyperparameters"]["async-save"], i == 1);
      for (const char* setting : {"async-save", "save", "log-dir"}) {
        manifests[i]["hyperparameters"].erase(setting);
      }
      manifests[i].erase("checksum");
    }
    EXPECT_EQ(manifests[0], manifests[1]);
  }
  std::vector<int64_t> saved;
  for (const Json& save : async.all("save")) {
    saved.push_back(save["step"]);
    EXPECT_GT(save["stall_ms"].get<double>(), 0);
    EXPECT_GT(save["write_ms"].get<double>(), 0);
  }
  EXPECT_EQ(saved, (std::vector<int64_t>{3, 6, 8}));
  // 2 of weight, 2 of remainder, 4 + 4 of state; neither gradients nor padding.
  const Json memory = async.one("memory");
  EXPECT_EQ(memory["save_copy_bytes"], 12 * memory["parameters"].get<int64_t>());
  EXPECT_EQ(sync.one("memory")["save_copy_bytes"], 0);
  EXPECT_THAT(async.terminal, HasSubstr("what --async-save is writing"));
}

TEST_F(Checkpoints, ASecondRunDoesNotWriteOverTheFirst) {
  run(args({"--save", own_ / "a"}));
  const RunResult again = run(args({"--save", own_ / "a"}));
  EXPECT_EQ(again.failed, ExitCode::kUsage);
  EXPECT_THAT(again.error, HasSubstr("--load"));
  // With --load of the same folder, an empty one is a fresh start and a full one is resumed.
  EXPECT_FALSE(run(args({"--save", own_ / "b", "--load", own_ / "b"})).failed);
  const RunResult done = run(args({"--save", own_ / "b", "--load", own_ / "b"}));
  EXPECT_FALSE(done.failed) << done.error;
  EXPECT_THAT(done.terminal, HasSubstr("nothing to do"));
  EXPECT_EQ(run(args({"--load", own_ / "nowhere"})).failed, ExitCode::kBadInput);
}

TEST_F(Checkpoints, WhatAResumeLeavesOut) {
  run(args({"--save", own_ / "a", "--train-iters", "4", "--lr-decay-iters", "8"}));
  const Args resume = args({"--load", own_ / "a", "--lr-decay-iters", "8"});
  const RunResult all = run(resume);
  ASSERT_FALSE(all.failed) << all.error;
  EXPECT_EQ(all.all("step").at(0)["step"], 5);
  // A fresh exp_avg_sq has another bias correction: the same first loss, another second one.
  const auto without_state = run(resume + Args{"--no-load-optim"}).series("loss");
  EXPECT_EQ(without_state[0], all.series("loss")[0]);
  EXPECT_NE(without_state[1], all.series("loss")[1]);
  // The checkpoint's seed wins, unless told otherwise: then the data begin anew in another order.
  EXPECT_EQ(run(resume + Args{"--seed", "5"}).series("loss"), all.series("loss"));
  EXPECT_NE(run(resume + Args{"--seed", "5", "--no-load-rng"}).series("loss"), all.series("loss"));
}

TEST_F(Checkpoints, ConvertsStateOnlyWhenToldTo) {
  run(args({"--bf16", "--save", own_ / "fp32", "--train-iters", "4"}));
  const Args o2 = args({"--bf16", "--o2-optimizer", "--load", own_ / "fp32"});
  EXPECT_EQ(run(o2).failed, ExitCode::kBadInput);
  const RunResult converted = run(o2 + Args{"--convert-state"});
  EXPECT_FALSE(converted.failed) << converted.error;
  EXPECT_THAT(converted.terminal, HasSubstr("converted: "));

  run(args({"--bf16", "--master", "none", "--save", own_ / "none", "--train-iters", "4"}));
  const Args master =
      args({"--bf16", "--master", "fp32", "--load", own_ / "none", "--convert-state"});
  EXPECT_EQ(run(master).failed, ExitCode::kBadInput);
  EXPECT_FALSE(run(master + Args{"--allow-lossy-master"}).failed);
}

TEST_F(Checkpoints, AnotherModelOrOtherDataAreRefused) {
  run(args({"--save", own_ / "a", "--train-iters", "4"}));
  const RunResult other_model = run(args({"--load", own_ / "a", "--num-layers", "2"}));
  EXPECT_EQ(other_model.failed, ExitCode::kUsage);
  EXPECT_THAT(other_model.error, HasSubstr("--num-layers is 2, and 1 for the model of --load"));
  const RunResult other_data =
      run(args({"--load", own_ / "a", "--seq-length", "8", "--max-position-embeddings", "16"}));
  EXPECT_EQ(other_data.failed, ExitCode::kUsage);
  EXPECT_THAT(other_data.error, HasSubstr("--allow-data-change"));
  const RunResult changed =
      run(args({"--load", own_ / "a", "--lr", "5e-3", "--global-batch-size", "4"}));
  EXPECT_THAT(changed.terminal,
              HasSubstr("  --lr                 0.01        0.005     this run's\n"));
  EXPECT_THAT(changed.terminal,
              HasSubstr("  --global-batch-size  2           4         this run's\n"));
}

}  // namespace
}  // namespace halfstep::testing
