// Training that is saved on a ranks and goes on on b, with buckets of another size: every byte is
// there, and the steps from there are those of a run that was never interrupted (docs/numerics.md
// §5, §7). Ranks are threads; gradients are functions of parameter and step, the same at any number
// of ranks. What whole runs do besides is in tests/dist.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/comm/thread_group.h"
#include "halfstep/core/test_folder.h"
#include "halfstep/dist/replica_check.h"
#include "halfstep/dist/test_rank.h"
#include "halfstep/train/arena_slices.h"

namespace halfstep::testing {
namespace {

using comm::Communicator;
using dist::testing::Gathered;
using dist::testing::Rank;
using dist::testing::RankOptions;
namespace ot = optim::testing;

constexpr int kSizes[] = {1, 2, 3, 4, 6, 8};
constexpr int64_t kStepsBefore = 5, kStepsAfter = 10;

// Sizes that no number of ranks divides, and many that are smaller than one rank's share.
std::vector<arch::Parameter> odd_model(int64_t large) {
  std::vector<arch::Parameter> model{ot::parameter("five", {5}, arch::ParameterKind::kNorm),
                                     ot::parameter("one", {1}, arch::ParameterKind::kBias),
                                     ot::parameter("seven", {7}, arch::ParameterKind::kBias),
                                     ot::parameter("large", {1, large})};
  for (int i = 0; i < 40; ++i) model.push_back(ot::parameter("three." + std::to_string(i), {3}));
  return model;
}

// What all ranks hold together, and how often each parameter was updated.
struct Held {
  Gathered bytes;
  optim::UpdateCounts counts;
  friend bool operator==(const Held& a, const Held& b) {
    return a.bytes == b.bytes && a.counts.common == b.counts.common &&
           a.counts.exceptions == b.counts.exceptions;
  }
};

class Reshard {
 public:
  Reshard(const layout::StorageFormat& format, int64_t large)
      : format_(format), parameters_(odd_model(large)) {
    // BF16 numbers, so that an accumulation in either dtype holds them exactly.
    const auto arenas = ot::make_arenas(parameters_, {.format = format_});
    for (int64_t step = 1; step <= kStepsBefore + kStepsAfter; ++step) {
      for (int64_t p = 0; p < std::ssize(parameters_); ++p) {
        gradients_[{step, p}] =
            ot::gradient(*arenas, p, step).to(at::kBFloat16).to(at::kFloat).contiguous();
      }
    }
    for (const arch::Parameter& parameter : parameters_)
      zeros_.push_back(at::zeros(parameter.shape));
  }

  // Trains steps [first, last] on `size` ranks: from the beginning, or from the checkpoint in
  // `load`, of which `loaded` becomes what was there before the first of them.
  Held run(int size, int64_t bucket_bytes, int64_t first, int64_t last, const std::string& load,
           const std::string& save, Held* loaded = nullptr) const {
    Held held;
    std::mutex mutex;
    const auto add_to = [&](Held& all, const Rank& rank) {
      const std::lock_guard lock(mutex);
      all.bytes.add(*rank.arenas);
      all.counts = rank.adamw->update_counts();
    };
    comm::run_ranks(size, [&](Communicator& ranks) {
      Rank rank(
          ranks,
          {.parameters = parameters_,
           .layout = {.format = format_, .keep_fp32 = ot::is_norm, .bucket_bytes = bucket_bytes},
           .global_micro_batches = size,
           .adamw = {.clip_grad = 0}});
      if (!load.empty()) {
        const checkpoint::CheckpointReader reader(load);
        reader.load(train::slices_to_load(*rank.arenas, ranks.rank(), /*with_state=*/true));
        rank.adamw->set_update_counts(
            {.common = reader.state().t, .exceptions = reader.state().t_exceptions});
        dist::check_replicas(*rank.arenas, ranks);
      }
      if (loaded != nullptr) add_to(*loaded, rank);
      for (int64_t step = first; step <= last; ++step) take_step(rank, step);
      rank.gather->wait_for_all();
      if (!save.empty()) save_rank(rank, last, save);
      add_to(held, rank);
    });
    return held;
  }

  void check_matrix() const {
    const TestFolder folder;
    const int64_t steps = kStepsBefore + kStepsAfter;
    std::map<int, Held> whole;
    for (const int size : kSizes) whole[size] = run(size, 1 << 20, 1, steps, "", "");
    for (const int from : kSizes) {
      const std::string saved = folder / std::to_string(from);
      const Held before = run(from, 64 << 10, 1, kStepsBefore, "", saved);
      EXPECT_EQ(before.counts.exceptions.size(), 1u);
      for (const int to : kSizes) {
        SCOPED_TRACE(std::to_string(from) + " -> " + std::to_string(to) + " ranks");
        Held loaded;
        const Held after = run(to, 1 << 20, kStepsBefore + 1, steps, saved, "", &loaded);
        EXPECT_TRUE(loaded == before);
        EXPECT_TRUE(after == whole[to]);
        EXPECT_FALSE(after == before);
      }
    }
  }

 private:
  void take_step(Rank& rank, int64_t step) const {
    rank.accumulate([&](int64_t k) {
      for (int64_t p = 0; p < std::ssize(parameters_); ++p) {
        // One parameter is not used by one step, so that its update count is another.
        if (p == 2 && step == 3) continue;
        rank.gradients->add(p, k == 0 ? gradients_.at({step, p}) : zeros_[p]);
      }
    });
    rank.update();
  }

  void save_rank(Rank& rank, int64_t iteration, const std::string& folder) const {
    checkpoint::TrainState state;
    state.iteration = iteration;
    state.t = rank.adamw->update_counts().common;
    state.t_exceptions = rank.adamw->update_counts().exceptions;
    state.storage = format_;
    checkpoint::save_checkpoint(
        folder, state, train::slices_to_save(*rank.arenas, rank.ranks.rank()), {}, rank.ranks);
  }

  const layout::StorageFormat format_;
  const std::vector<arch::Parameter> parameters_;
  std::map<std::pair<int64_t, int64_t>, at::Tensor> gradients_;  // of (step, parameter)
  std::vector<at::Tensor> zeros_;
};

TEST(Reshard, AMillionElementsGoOnAsIfNothingHadHappened) {
  Reshard(ot::kO2Split, 1'000'003).check_matrix();
}

// FP32 state, an FP32 master, none with amsgrad, FP32 weights; and the mixes of 16 and 32 bits.
TEST(Reshard, EveryStorageFormatComesBackToTheBit) {
  const layout::StorageFormat fp32_exp_avg_sq{
      .gradient = Dtype::kBF16, .master = MasterMode::kSplit, .exp_avg = Dtype::kBF16};
  const layout::StorageFormat ue6m10_beside_fp32{.exp_avg_sq = Dtype::kUE6M10};
  for (const auto& format : {ot::kBaseline, ot::kAllFp32, ot::kO2, ot::kO2NoMaster, ot::kO2Split,
                             fp32_exp_avg_sq, ue6m10_beside_fp32}) {
    SCOPED_TRACE(dtype_name(format.exp_avg_sq));
    Reshard(format, 10'007).check_matrix();
  }
}

}  // namespace
}  // namespace halfstep::testing
