// Fine-tuning against `transformers`: the same examples.jsonl, there each example through the model
// alone with labels of −100 on its prompt, here read, packed and back-propagated as in a run.
//
// Tolerance: as in reference_test.cc, where the longest sum has 131 terms; here it has 257, √2 of
// the error: 1.4e-5. The faults at the end are seen with a hundred times that.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "halfstep/data/example_reader.h"
#include "halfstep/data/example_sampler.h"
#include "halfstep/data/tokenizer.h"
#include "reference_case.h"

namespace halfstep::model::testing {
namespace {

constexpr double kTolerance = 1.4e-5;
constexpr int64_t kSeqLength = 40;
constexpr int64_t kBatch = 3;  // of rows: with what is left over, batches of several sizes

Batch to_batch(const data::MicroBatch& from) {
  const auto copy = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::kLong).view({from.batch, from.seq_length});
  };
  return {.tokens = copy(from.tokens),
          .targets = copy(from.targets),
          .positions = copy(from.positions),
          .segment_starts = from.segment_starts};
}

class Finetune : public ::testing::TestWithParam<std::string> {
 protected:
  Finetune()
      : case_(GetParam()),
        leaves_(load_leaves(case_)),
        model_(case_.config, leaves_, {}),
        examples_(std::make_shared<data::ExampleSet>(
            data::read_examples({case_.folder / "examples.jsonl"}, bytes_,
                                {.max_tokens = kSeqLength + 1})
                .examples)) {}

  data::ExampleSampler samples(bool packing) const {
    return {examples_,        {.seq_length = kSeqLength, .packing = packing}, 5, true, 0,
            examples_->size()};
  }

  // Of one epoch; gradients are added up in the leaves.
  double loss_of(const data::SampleSource& source,
                 const std::function<void(data::MicroBatch&)>& fault = {}) {
    double sum = 0;
    const int64_t rows = source.samples_per_epoch();
    for (int64_t first = 0; first < rows; first += kBatch) {
      data::MicroBatch batch = source.read(first, std::min(kBatch, rows - first));
      if (fault) fault(batch);
      const at::Tensor loss = model_.loss_sum(to_batch(batch));
      loss.backward();
      sum += loss.item<double>();
    }
    return sum;
  }

  ReferenceCase case_;
  std::vector<at::Tensor> leaves_;
  Model model_;
  data::ByteTokenizer bytes_;
  std::shared_ptr<data::ExampleSet> examples_;
};
INSTANTIATE_TEST_SUITE_P(Models, Finetune, ::testing::Values("finetune_qwen3", "finetune_llama"),
                         [](const auto& info) { return info.param; });

TEST_P(Finetune, LossAndEveryGradientPackedAndNot) {
  const double expected = case_.reference.at("loss").item<double>();
  EXPECT_EQ(examples_->num_targets(), case_.reference.at("num_targets").item<int64_t>());
  EXPECT_LT(samples(true).samples_per_epoch(), examples_->size()) << "nothing was packed";
  EXPECT_EQ(samples(false).samples_per_epoch(), examples_->size());
  for (const bool packing : {true, false}) {
    EXPECT_NEAR(loss_of(samples(packing)), expected, kTolerance * expected);
    for (size_t i = 0; i < leaves_.size(); ++i) {
      const std::string& name = case_.parameters[i].name;
      EXPECT_LE(relative_error(leaves_[i].grad(), case_.reference.at("grad." + name)), kTolerance)
          << name << (packing ? " packed" : "");
      leaves_[i].mutable_grad().reset();
    }
  }
}

// What packing must not do, done: each is far outside the tolerance, so the test above sees it.
TEST_P(Finetune, FaultsOfPackingWouldBeSeen) {
  // The largest error of a gradient. Not of the loss, whose sum may hide much.
  const auto error_with = [&](const std::function<void(data::MicroBatch&)>& fault) {
    loss_of(samples(true), fault);
    double worst = 0;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      const at::Tensor& expected = case_.reference.at("grad." + case_.parameters[i].name);
      worst = std::max(worst, relative_error(leaves_[i].grad(), expected));
      leaves_[i].mutable_grad().reset();
    }
    return worst;
  };
  // Attention across the examples of a row.
  EXPECT_GT(error_with([](data::MicroBatch& batch) {
              batch.segment_starts.clear();
              for (int64_t row = 0; row <= batch.batch; ++row) {
                batch.segment_starts.push_back(row * kSeqLength);
              }
            }),
            100 * kTolerance);
  // Prompts with a loss.
  EXPECT_GT(error_with([](data::MicroBatch& batch) {
              for (size_t i = 0; i + 1 < batch.tokens.size(); ++i) {
                if (batch.positions[i + 1] != 0) batch.targets[i] = batch.tokens[i + 1];
              }
            }),
            100 * kTolerance);
  // Positions that run on do nothing by themselves: rotary attention knows differences only. With
  // attention that runs on as well, they do; and one position of an example that is off does.
  EXPECT_LT(error_with([](data::MicroBatch& batch) {
              for (size_t i = 0; i < batch.positions.size(); ++i) {
                batch.positions[i] = static_cast<int64_t>(i) % kSeqLength;
              }
            }),
            kTolerance);
  EXPECT_GT(error_with([](data::MicroBatch& batch) {
              for (const int64_t start : batch.segment_starts) {
                if (start < std::ssize(batch.positions)) batch.positions[start] = kSeqLength;
              }
            }),
            100 * kTolerance);
}

}  // namespace
}  // namespace halfstep::model::testing
