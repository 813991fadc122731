// What a resumed run takes from its checkpoint and what from its command line: hyper-parameters,
// data, and with --finetune nothing but weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numbers>

#include "halfstep/checkpoint/reader.h"
#include "run.h"

namespace halfstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Resume : public ::testing::Test {
 protected:
  // Four steps at a constant rate, saved as `name`.
  Args saved(const std::string& name, const Args& more = {}) {
    const RunResult result = run(tiny_run(text_) +
                                 Args{"--lr", "6e-4", "--lr-decay-style", "constant",
                                      "--train-iters", "4", "--save", folder_ / name} +
                                 more);
    EXPECT_FALSE(result.failed) << result.error;
    return {"--load", folder_ / name};
  }

  // The bytes of its tensors, by kind and name.
  static std::map<std::string, std::string> tensors(const std::string& folder) {
    const checkpoint::CheckpointReader reader(folder);
    std::map<std::string, std::string> found;
    for (const checkpoint::StoredSlice& stored : reader.manifest().slices) {
      std::string bytes(static_cast<size_t>(stored.bytes()), '\0');
      checkpoint::MutableSlice slice;
      static_cast<checkpoint::Slice&>(slice) = stored;
      slice.data = bytes.data();
      reader.load({&slice, 1}, {.allow_unrequested = true});
      found[checkpoint::format_slice_name(stored)] = bytes;
    }
    return found;
  }

  TestFolder folder_;
  std::string text_ = write_text(folder_, "text.txt");
};

// P12. Each learning rate is the closed form of what was asked for.
TEST_F(Resume, ScheduleOfTheCommandLine) {
  const RunResult result = run(
      saved("a") + Args{"--lr-decay-style", "cosine", "--min-lr", "6e-5", "--train-iters", "8"});
  ASSERT_FALSE(result.failed) << result.error;
  const std::vector<double> rates = result.series("lr");
  ASSERT_EQ(rates.size(), 4u);
  for (int i = 4; i < 8; ++i) {
    const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * i / 8));
    EXPECT_DOUBLE_EQ(rates[i - 4], 6e-5 + cosine * (6e-4 - 6e-5)) << "step " << i + 1;
  }
}

TEST_F(Resume, ATableSaysWhichOfTwoValuesHolds) {
  const Args load = saved("a", {"--weight-decay", "0.1"});
  const Args other{"--lr",          "1e-3", "--weight-decay", "0.2",
                   "--train-iters", "5",    "--log-interval", "2"};
  const RunResult cli = run(load + other);
  ASSERT_FALSE(cli.failed) << cli.error;
  EXPECT_DOUBLE_EQ(cli.series("lr")[0], 1e-3);
  EXPECT_THAT(cli.terminal, HasSubstr("                  checkpoint  this run  used\n"
                                      "  --train-iters   4           5         this run's\n"
                                      "  --log-interval  1           2         this run's\n"
                                      "  --lr            0.0006      0.001     this run's\n"
                                      "  --weight-decay  0.1         0.2       this run's\n"));

  const RunResult stored = run(load + other + Args{"--resume-hparams", "checkpoint"});
  ASSERT_FALSE(stored.failed) << stored.error;
  EXPECT_DOUBLE_EQ(stored.series("lr")[0], 6e-4);
  EXPECT_THAT(stored.terminal, HasSubstr("  --train-iters   4           5         this run's\n"));
  EXPECT_THAT(stored.terminal,
              HasSubstr("  --lr            0.0006      0.001     the checkpoint's\n"));
  const auto changes = stored.all("changed_setting");
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[3]["flag"], "weight-decay");
  EXPECT_EQ(changes[3]["checkpoint"], "0.1");
  EXPECT_EQ(changes[3]["this_run"], "0.2");
  EXPECT_EQ(changes[3]["used"], "0.1");

  // What nobody changed is in no table.
  EXPECT_THAT(run(load + Args{"--lr", "6e-4"}).terminal, Not(HasSubstr("this run's")));
}

// The four flags of one curve are overruled together, also where the checkpoint's value is "not
// given"; and a curve that ended with its run still ends there.
TEST_F(Resume, TheCheckpointsCurveStaysWhole) {
  const Args load = saved("a", {"--lr-decay-style", "linear", "--min-lr", "1e-4", "--train-iters",
                                "4", "--lr-decay-iters", "10", "--lr-warmup-iters", "2"});
  const Args mode{"--resume-hparams", "checkpoint", "--train-iters", "6"};
  const std::vector<double> expected = run(load + mode).series("lr");
  ASSERT_EQ(expected.size(), 2u);
  for (int i = 4; i < 6; ++i) {
    EXPECT_DOUBLE_EQ(expected[i - 4], 1e-4 + (1 - (i - 2) / 8.0) * (6e-4 - 1e-4));
  }
  const RunResult other =
      run(load + mode +
          Args{"--lr", "5", "--lr-decay-style", "constant", "--lr-warmup-fraction", "0.5"});
  ASSERT_FALSE(other.failed) << other.error;
  EXPECT_EQ(other.series("lr"), expected);

  const Args whole = saved("b", {"--lr-decay-style", "cosine"});
  const std::vector<double> tail = run(whole + mode).series("lr");
  EXPECT_THAT(tail, ElementsAre(::testing::DoubleNear(0, 1e-12), 0));  // its end, and beyond
}

// Storage is no hyper-parameter: it is the command line's in both modes.
TEST_F(Resume, TheCheckpointsHyperParametersLeaveTheStorageAlone) {
  const RunResult result =
      run(saved("a", {"--bf16"}) + Args{"--o2-optimizer", "--convert-state", "--train-iters", "5",
                                        "--resume-hparams", "checkpoint"});
  ASSERT_FALSE(result.failed) << result.error;
  EXPECT_THAT(result.terminal, HasSubstr("converted: "));
}

TEST_F(Resume, TheSeedIsTheCheckpointsUnlessItsPlaceIsGivenUp) {
  const Args load = saved("a") + Args{"--train-iters", "5", "--seed", "5"};
  EXPECT_THAT(run(load).terminal,
              HasSubstr("  --seed         1234        5         the checkpoint's\n"));
  EXPECT_THAT(run(load + Args{"--no-load-rng"}).terminal,
              HasSubstr("  --seed         1234        5         this run's\n"));
}

TEST_F(Resume, OtherDataNeedAFlagAndBeginWithTheirFirstSample) {
  const Args load = saved("a") + Args{"--train-iters", "6"};
  // Another text, another share of it, and a shorter sequence.
  for (const Args& change : {Args{"--data", write_text(folder_, "other.txt", 1)},
                             Args{"--split", "80,20,0"}, Args{"--seq-length", "8"}}) {
    SCOPED_TRACE(change[0]);
    for (const Args& alone : {Args{}, Args{"--no-load-rng"}}) {
      const RunResult refused = run(load + change + alone);
      EXPECT_EQ(refused.failed, ExitCode::kUsage);
      EXPECT_THAT(refused.error, HasSubstr("--allow-data-change"));
    }
    const std::string log = folder_ / ("log" + change[0]);
    const RunResult changed =
        run(load + change + Args{"--allow-data-change", "--log-samples", "--log-dir", log});
    ASSERT_FALSE(changed.failed) << changed.error;
    EXPECT_THAT(changed.terminal, HasSubstr("of which 8 samples were read"));
    // Values of --data would add up; of the other flags the last one counts.
    const Args own = change[0] == "--data" ? without(tiny_run(text_), "--data") : tiny_run(text_);
    const RunResult fresh = run(
        own + change + Args{"--log-samples", "--log-dir", log + "_fresh", "--train-iters", "2"});
    ASSERT_FALSE(fresh.failed) << fresh.error;
    ASSERT_EQ(changed.all("samples").size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(changed.all("samples")[i]["ids"], fresh.all("samples")[i]["ids"]);
    }
  }
  // Nothing changed: the flag of a script that is started again moves nothing.
  const RunResult same = run(load + Args{"--allow-data-change"});
  EXPECT_EQ(same.series("loss"), run(load).series("loss"));
  EXPECT_THAT(same.terminal, Not(HasSubstr("samples were read")));
}

// 33 tokens are two samples of 16 and two of 15: equal tokens and counts, other samples.
TEST_F(Resume, ASequenceLengthIsOtherDataEvenIfTheCountsAgree) {
  std::ofstream(folder_ / "short.txt") << "two times sixteen bytes of text.";
  const Args data{"--data", folder_ / "short.txt", "--split", "1,0,0"};
  const Args base = without(tiny_run(text_), "--data") + data;
  EXPECT_FALSE(run(base + Args{"--train-iters", "2", "--save", folder_ / "a"}).failed);
  const Args load{"--load", folder_ / "a", "--train-iters", "3"};
  EXPECT_FALSE(run(load).failed);
  const RunResult shorter = run(load + Args{"--seq-length", "15"});
  EXPECT_EQ(shorter.failed, ExitCode::kUsage);
  EXPECT_THAT(shorter.error, HasSubstr("--allow-data-change"));
}

// A new run from the weights: everything else is as if they had come from elsewhere.
TEST_F(Resume, FinetuningTakesTheWeightsAlone) {
  const Args load = saved("base", {"--bf16", "--reuse-fp32-param", "--adam-beta1", "0.5"});
  const Args begin{"--seq-length",
                   "16",
                   "--micro-batch-size",
                   "2",
                   "--train-iters",
                   "3",
                   "--lr",
                   "1e-30",
                   "--eval-iters",
                   "0",
                   "--log-interval",
                   "1",
                   "--data",
                   write_text(folder_, "other.txt", 1),
                   "--num-threads",
                   "1",
                   "--finetune"};
  const RunResult tuned =
      run(load + begin + Args{"--bf16", "--reuse-fp32-param", "--save", folder_ / "tuned"});
  ASSERT_FALSE(tuned.failed) << tuned.error;
  EXPECT_THAT(tuned.terminal, HasSubstr("fine-tuning "));
  EXPECT_THAT(tuned.terminal, Not(HasSubstr("this run's")));
  EXPECT_EQ(tuned.all("step").at(0)["step"], 1);
  // Steps too small to move a bit: weights and remainders are the base's, to the bit.
  const auto before = tensors(folder_ / "base"), after = tensors(folder_ / "tuned");
  int64_t same = 0;
  for (const auto& [name, bytes] : before) {
    if (name.starts_with("exp_avg")) continue;
    EXPECT_EQ(after.at(name), bytes) << name;
    ++same;
  }
  EXPECT_GT(same, 0);
  const checkpoint::CheckpointReader reader(folder_ / "tuned");
  EXPECT_EQ(reader.state().iteration, 3);
  EXPECT_EQ(reader.state().t, 3);
  EXPECT_EQ(reader.state().consumed_samples, 6);
  EXPECT_EQ(reader.state().hyperparameters["adam-beta1"], 0.9);

  // Into another kind of master, from a checkpoint with none, and as FP32 weights.
  EXPECT_FALSE(run(load + begin + Args{"--bf16", "--master", "fp32"}).failed);
  EXPECT_FALSE(run(load + begin).failed);
  const Args none = saved("none", {"--bf16", "--master", "none"});
  EXPECT_FALSE(run(none + begin + Args{"--bf16"}).failed);

  EXPECT_EQ(run(load + begin + Args{"--save", folder_ / "base"}).failed, ExitCode::kUsage);
  for (const Args& idle : {Args{"--no-load-optim"}, Args{"--no-load-rng"}, Args{"--convert-state"},
                           Args{"--allow-data-change"}, Args{"--resume-hparams", "cli"}}) {
    const RunResult refused = run(load + begin + idle);
    EXPECT_EQ(refused.failed, ExitCode::kUsage);
    EXPECT_THAT(refused.error, HasSubstr(idle[0] + " has no effect with --finetune"));
  }
}

}  // namespace
}  // namespace halfstep::testing
