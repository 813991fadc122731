#include "halfstep/train/evaluate.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "halfstep/core/error.h"

namespace halfstep::train {

model::Batch to_tensors(const data::MicroBatch& batch) {
  const auto copy = [&](const std::vector<int64_t>& values) {
    return at::from_blob(const_cast<int64_t*>(values.data()), {batch.batch, batch.seq_length},
                         at::kLong)
        .clone();
  };
  return {.tokens = copy(batch.tokens),
          .targets = copy(batch.targets),
          .positions = copy(batch.positions),
          .segment_starts = batch.segment_starts};
}

Evaluation evaluate(model::Model& model, const data::SampleSource& samples, int64_t batch,
                    int64_t sequences, comm::Communicator& ranks) {
  at::NoGradGuard no_grad;
  Evaluation result;
  result.sequences = std::min(sequences, samples.samples_per_epoch());
  double sums[] = {0, 0};  // losses, targets
  for (int64_t first = ranks.rank() * batch; first < result.sequences;
       first += ranks.size() * batch) {
    const auto micro_batch = samples.read(first, std::min(batch, result.sequences - first));
    sums[0] += model.loss_sum(to_tensors(micro_batch)).item<double>();
    sums[1] += static_cast<double>(micro_batch.num_targets);
  }
  ranks.all_reduce_sum(sums);
  result.loss_sum = sums[0];
  result.tokens = static_cast<int64_t>(sums[1]);
  if (result.tokens == 0) {
    throw InputError("the evaluation data have no target with a loss",
                     "drop --eod-mask-loss or give more data");
  }
  return result;
}

}  // namespace halfstep::train
