// What is read back: weights as they are stored, and a manifest whose values are of the wrong type.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "halfstep/checkpoint/manifest.h"
#include "halfstep/core/bf16.h"
#include "halfstep/io/file.h"
#include "halfstep/train/loaded_model.h"
#include "run.h"

namespace halfstep::testing {
namespace {

using ::testing::HasSubstr;

class Loading : public ::testing::Test {
 protected:
  // Saves two steps, and the checkpoint's manifest after `edit`.
  std::string edited(const std::function<void(checkpoint::TrainState&)>& edit) {
    const std::string name = "edited" + std::to_string(count_++);
    const RunResult saved =
        run(tiny_run(text_) + Args{"--train-iters", "2", "--save", folder_ / name});
    EXPECT_FALSE(saved.failed) << saved.error;
    const std::string path = folder_ / (name + "/step_00000002/manifest.json");
    checkpoint::Manifest manifest = checkpoint::parse_manifest(io::read_text_file(path), path);
    edit(manifest.state);
    io::write_file_atomically(path, checkpoint::format_manifest(manifest));
    return folder_ / name;
  }
  // The message of loading a model to read it, "" if it worked.
  static std::string load(const train::ModelSource& source) {
    try {
      train::load_model(source);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  double loss(const std::string& folder, train::MatmulPrecision precision) const {
    const auto loaded = train::load_model(
        {.load = "", .load_hf = folder_ / folder, .matmul_precision = precision, .num_threads = 1});
    at::NoGradGuard no_grad;
    const at::Tensor tokens = at::arange(64, 80).view({1, 16});
    return loaded.model
        ->loss_sum({.tokens = tokens,
                    .targets = tokens + 1,
                    .positions = at::arange(16).view({1, 16}),
                    .segment_starts = {}})
        .item<double>();
  }

  TestFolder folder_;
  std::string text_ = write_text(folder_, "text.txt");
  int count_ = 0;
};

// Weights with more bits than BF16 has, and the same ones rounded to it.
TEST_F(Loading, AFolderOfFp32WeightsIsNotRounded) {
  const WeightValue exact = [](const arch::Parameter& p, int64_t element) {
    return 0.3f * std::sin(static_cast<float>(3 * element + p.numel()));
  };
  hf_run(tiny_run(text_), folder_ / "exact", exact);
  hf_run(tiny_run(text_), folder_ / "rounded", [&](const arch::Parameter& p, int64_t element) {
    return bf16_decode(bf16_nearest(exact(p, element)));
  });
  using enum train::MatmulPrecision;
  EXPECT_EQ(loss("exact", kAuto), loss("exact", kF32));
  EXPECT_NE(loss("exact", kAuto), loss("rounded", kAuto));
  // Matmuls in BF16 only where they are asked for.
  EXPECT_NE(loss("exact", kBF16), loss("exact", kF32));
}

TEST_F(Loading, ValuesOfTheWrongTypeInAManifestAreNamed) {
  const std::string precision =
      edited([](auto& state) { state.hyperparameters["matmul-precision"] = 16; });
  const Args resume = without(tiny_run(text_), "--matmul-precision") + Args{"--train-iters", "4"};
  const RunResult resumed = run(resume + Args{"--load", precision});
  EXPECT_EQ(resumed.failed, ExitCode::kBadInput);
  EXPECT_THAT(resumed.error,
              HasSubstr("hyperparameters: --matmul-precision: got '16', expected one of"));
  const std::string unknown =
      edited([](auto& state) { state.hyperparameters["matmul-precision"] = "fp8"; });
  EXPECT_THAT(run(resume + Args{"--load", unknown}).error, HasSubstr("got 'fp8'"));

  const auto read = [&](const std::function<void(checkpoint::TrainState&)>& edit) {
    return load({.load = edited(edit), .load_hf = "", .num_threads = 1});
  };
  EXPECT_EQ(read([](auto&) {}), "");
  EXPECT_EQ(read([](auto& state) { state.data = nlohmann::json::object(); }), "");
  EXPECT_THAT(read([](auto& state) { state.data["tokenizer"] = 1; }),
              HasSubstr("manifest.json: data.tokenizer: got 1, expected a string"));
  EXPECT_THAT(read([](auto& state) { state.data["seq_length"] = "16"; }),
              HasSubstr("data.seq_length: got \"16\", expected an integer"));
  EXPECT_THAT(read([](auto& state) { state.data["seq_length"] = -3; }),
              HasSubstr("data.seq_length: got -3"));
}

}  // namespace
}  // namespace halfstep::testing
