// The loss of a model on a fixed part of the data, in file order and without gradients.
#pragma once

#include <cstdint>

#include "halfstep/comm/communicator.h"
#include "halfstep/data/sample_source.h"
#include "halfstep/model/model.h"

namespace halfstep::train {

// Copies a micro-batch into tensors.
model::Batch to_tensors(const data::MicroBatch& batch);

struct Evaluation {
  double loss_sum = 0;  // nats
  int64_t tokens = 0;   // targets that have a loss
  int64_t sequences = 0;

  double loss() const { return loss_sum / static_cast<double>(tokens); }
};

// The first `sequences` samples (at most one pass), `batch` at a time, shared out among the ranks:
// each gets the result for all. Sums are added in FP64, so the result depends on `batch` and on the
// number of ranks only through the model's own summation order and FP64's rounding.
Evaluation evaluate(model::Model& model, const data::SampleSource& samples, int64_t batch,
                    int64_t sequences, comm::Communicator& ranks);

}  // namespace halfstep::train
