// How runs end early, and what is left of them: skipped steps, data that turn out bad, saves that
// fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "halfstep/data/indexed_writer.h"
#include "run.h"

namespace halfstep::testing {
namespace {

using ::testing::HasSubstr;

class Ending : public ::testing::Test {
 protected:
  std::string step(const std::string& run, int64_t n) const {
    return folder_ / (run + "/step_0000000" + std::to_string(n));
  }
  TestFolder folder_;
  std::string text_ = write_text(folder_, "text.txt");
};

TEST_F(Ending, StepsThatAreNotFiniteAreSkippedWholeAndEndTheRun) {
  const RunResult diverged = run(
      tiny_run(text_) + Args{"--lr", "1e30", "--max-skipped-steps", "3", "--save", folder_ / "a",
                             "--save-interval", "1", "--keep-last", "1", "--train-iters", "9"});
  EXPECT_EQ(diverged.failed, ExitCode::kDiverged);
  EXPECT_THAT(diverged.error, HasSubstr("3 steps in a row"));
  EXPECT_THAT(diverged.error, HasSubstr("model."));  // the last bad parameter
  const auto skipped = diverged.all("skipped");
  ASSERT_EQ(skipped.size(), 3u);
  // The iteration advances over a skipped step, and nothing else changes. While steps are skipped
  // --keep-last deletes nothing: the newest weights may be what is wrong.
  const int64_t first = skipped[0]["step"];
  EXPECT_EQ(skipped[1]["step"], first + 1);
  const std::string good = checkpoint_bytes(step("a", first - 1));
  for (int64_t n = first; n <= first + 2; ++n) EXPECT_EQ(checkpoint_bytes(step("a", n)), good);
  EXPECT_FALSE(std::filesystem::exists(step("a", first - 2)));
  // Its loss is not in the log: JSON has no NaN.
  EXPECT_TRUE(diverged.all("step").back()["loss"].is_null());
}

// Without --save-interval too, and the run can go on from there.
TEST_F(Ending, ARunThatDivergesSavesWhatItHas) {
  const Args args = tiny_run(text_) + Args{"--train-iters", "9", "--max-skipped-steps", "2"};
  const RunResult diverged = run(args + Args{"--lr", "1e30", "--save", folder_ / "a"});
  EXPECT_EQ(diverged.failed, ExitCode::kDiverged);
  const int64_t last = diverged.all("skipped").back()["step"];
  EXPECT_EQ(diverged.one("save")["step"], last);
  EXPECT_EQ(diverged.one("end")["finished"], false);
  const RunResult resumed = run(args + Args{"--load", folder_ / "a"});
  // Its weights are beyond repair, and it is the third step in a row: --max-skipped-steps holds.
  EXPECT_EQ(resumed.failed, ExitCode::kDiverged) << resumed.error;
  EXPECT_EQ(resumed.one("skipped")["step"], last + 1);
}

// Every sequence with a 'Z' in it has no finite gradient, since its embedding is NaN.
TEST_F(Ending, OnlySkippedStepsInARowCount) {
  const std::string path = folder_ / "some_z";
  std::ofstream file(path);
  for (int i = 0; i < 60; ++i) file << (i * i % 7 < 3 ? "a dog saw Z cats" : "the dog saw cats");
  file.close();
  const Args args = tiny_run(path) + Args{"--micro-batch-size",
                                          "1",
                                          "--train-iters",
                                          "50",
                                          "--untie-embeddings-and-output-weights",
                                          "--lr",
                                          "1e-4"};
  const Args hf = hf_run(args, folder_ / "hf", [](const arch::Parameter& p, int64_t element) {
    if (p.kind == arch::ParameterKind::kNorm) return 1.0f;
    const bool z = p.name == "model.embed_tokens.weight" && element / 16 == 'Z';
    return z ? std::numeric_limits<float>::quiet_NaN()
             : 0.1f * std::sin(static_cast<float>(3 * element + p.numel()));
  });
  const RunResult all = run(hf + Args{"--max-skipped-steps", "50"});
  ASSERT_FALSE(all.failed) << all.error;
  int64_t in_row = 0, longest = 0, before = -1;
  const auto skipped = all.all("skipped");
  for (const Json& event : skipped) {
    in_row = event["step"] == before + 1 ? in_row + 1 : 1;
    before = event["step"];
    longest = std::max(longest, in_row);
  }
  // More of them than in any row: a count that a good step does not reset would reach `longest +
  // 1`.
  ASSERT_GT(std::ssize(skipped), longest + 1);
  ASSERT_GT(longest, 1);
  const RunResult enough = run(hf + Args{"--max-skipped-steps", std::to_string(longest + 1)});
  EXPECT_FALSE(enough.failed) << enough.error;
  const RunResult too_few = run(hf + Args{"--max-skipped-steps", std::to_string(longest)});
  EXPECT_EQ(too_few.failed, ExitCode::kDiverged);
}

TEST_F(Ending, DataThatTurnOutBadDoNotCostWhatWasTrained) {
  std::vector<int32_t> ids(16 * 40);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * i % 251);
  ids[300] = 999;  // in one or two of the sequences
  data::IndexedWriter writer(folder_ / "tokens", data::TokenDtype::kUint16);
  writer.add_document(ids);
  writer.finish();
  const RunResult result =
      run(without(tiny_run(text_), "--data") +
          Args{"--data-path", folder_ / "tokens", "--split", "100,0,0", "--micro-batch-size", "1",
               "--train-iters", "40", "--save", folder_ / "a"});
  EXPECT_EQ(result.failed, ExitCode::kBadInput);
  EXPECT_THAT(result.error, HasSubstr("999"));
  const auto steps = result.all("step");
  ASSERT_FALSE(steps.empty()) << "another seed is needed: the bad sequence came first";
  EXPECT_EQ(result.one("save")["step"], steps.back()["step"]);
}

// A folder where the file `latest` belongs: no save can succeed.
TEST_F(Ending, ALastSaveThatFailsIsAnErrorAndOneOnTheWayIsNot) {
  for (const Args& how : {Args{}, Args{"--async-save"}}) {
    const std::string name = how.empty() ? "sync" : "async";
    SCOPED_TRACE(name);
    std::filesystem::create_directories(folder_ / (name + "/latest/x"));
    const RunResult result =
        run(tiny_run(text_) + Args{"--save", folder_ / name, "--log-dir", folder_ / (name + "_log"),
                                   "--save-interval", "2", "--train-iters", "7"} +
            how);
    EXPECT_EQ(result.failed, ExitCode::kBadInput);
    EXPECT_THAT(result.error, HasSubstr("latest"));
    EXPECT_EQ(result.series("loss").size(), 7u);
    const auto failed = result.all("save_failed");
    ASSERT_EQ(failed.size(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(failed[i]["step"], 2 * (i + 1));
      EXPECT_THAT(failed[i]["error"].get<std::string>(), HasSubstr("latest"));
    }
    EXPECT_THAT(result.terminal, HasSubstr("warning: step 2 was not saved: "));
    EXPECT_THAT(result.terminal, HasSubstr("tries again at the next --save-interval"));
  }
}

}  // namespace
}  // namespace halfstep::testing
