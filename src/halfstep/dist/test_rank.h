// A rank of a data-parallel run, for tests: arenas, gradient buffer, reducer, optimizer and gather
// on a communicator, as the training loop wires them, and gradients that are a function of
// (parameter, step, micro-batch of the global batch).
#pragma once

#include <optional>

#include "halfstep/comm/thread_group.h"
#include "halfstep/core/thread_pool.h"
#include "halfstep/dist/gradient_reducer.h"
#include "halfstep/dist/parameter_gather.h"
#include "halfstep/optim/test_support.h"

namespace halfstep::dist::testing {

namespace ot = optim::testing;

struct RankOptions {
  std::vector<arch::Parameter> parameters = ot::small_model();
  layout::LayoutOptions layout = {.format = ot::kO2Split};
  ReducerOptions reducer = {};
  bool overlap_gather = false;
  int64_t global_micro_batches = 8;  // shared out among the ranks
  optim::AdamWOptions adamw = {};
};

struct Rank {
  Rank(comm::Communicator& communicator, RankOptions given)
      : options(std::move(given)), ranks(communicator), pool(1), own_pool(pool) {
    options.layout.num_ranks = ranks.size();
    auto planned = layout::build_layout(options.parameters, options.layout);
    arenas = std::make_unique<optim::Arenas>(options.parameters, std::move(planned), ranks.rank());
    gradients.emplace(*arenas, optim::GradientBufferOptions{.fusion = false,
                                                            .micro_batches = micro_batches()});
    reducer.emplace(*arenas, *gradients, ranks, options.reducer);
    adamw.emplace(*arenas, options.adamw, &ranks);
    gather.emplace(*arenas, ranks, options.overlap_gather);
    optim::init_weights(*arenas, 11);
  }

  int64_t micro_batches() const { return options.global_micro_batches / ranks.size(); }

  // `contribute(k)` adds the gradients of the global batch's micro-batch k.
  template <typename Contribute>
  void accumulate(Contribute&& contribute) {
    gather->wait_for_all();
    gradients->begin_step(adamw->updates());
    for (int64_t i = 0; i < micro_batches(); ++i) {
      const int64_t k = ranks.rank() * micro_batches() + i;
      gradients->begin_micro_batch(k);
      if (i + 1 == micro_batches()) reducer->begin_last_micro_batch();
      contribute(k);
    }
    reducer->finish();
  }
  optim::StepResult update(double loss_weight = 1, double lr = 1e-3) {
    adamw->measure(*gradients);
    const auto result = adamw->update({.lr = lr, .loss_weight = loss_weight});
    if (!result.skipped) gather->start();
    return result;
  }

  // What this rank's reduced gradients are, as FP64 [numel] with zeros where others own it.
  at::Tensor reduced(int64_t p) const {
    at::Tensor all = at::zeros({arenas->parameters()[p].numel()}, at::kDouble);
    if (const layout::ShardSlice* slice = arenas->owned(p)) {
      const auto type = arenas->layout().reduced_dtype(slice->arena) == Dtype::kF32 ? at::kFloat
                                                                                     : at::kBFloat16;
      all.narrow(0, slice->first, slice->numel)
          .copy_(at::from_blob(arenas->reduced_gradient(*slice), {slice->numel}, type));
    }
    return all;
  }

  RankOptions options;
  comm::Communicator& ranks;
  ThreadPool pool;
  ThreadPool::Override own_pool;
  std::unique_ptr<optim::Arenas> arenas;
  std::optional<optim::GradientBuffer> gradients;
  std::optional<GradientReducer> reducer;
  std::optional<optim::AdamW> adamw;
  std::optional<ParameterGather> gather;
};

// What all ranks hold together of each class, by parameter and element: the same at any number of
// ranks if the bits are. Ranks fill in their parts, one after the other.
class Gathered {
 public:
  void add(const optim::Arenas& arenas) {
    for (const layout::ShardSlice& slice : arenas.shard()) {
      for (const layout::MemoryClass c : layout::kMemoryClasses) {
        if (c == layout::MemoryClass::kGradient) continue;
        const auto* data = static_cast<const char*>(arenas.data(c, slice));
        if (data == nullptr) continue;
        const int64_t element = arenas.layout().arenas[slice.arena].format.bytes_per_element(c);
        std::string& all = bytes_[{slice.parameter, c}];
        all.resize(arenas.parameters()[slice.parameter].numel() * element);
        all.replace(slice.first * element, slice.numel * element, data, slice.numel * element);
      }
    }
  }
  friend bool operator==(const Gathered&, const Gathered&) = default;

 private:
  std::map<std::pair<int64_t, layout::MemoryClass>, std::string> bytes_;
};

// Whether all ranks hold the same weights.
inline uint64_t weights_of(const optim::Arenas& arenas) {
  return ot::fingerprint(arenas, {layout::MemoryClass::kWeight});
}

}  // namespace halfstep::dist::testing
