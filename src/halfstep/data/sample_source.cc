#include "halfstep/data/sample_source.h"

#include "halfstep/core/error.h"

namespace halfstep::data {

MicroBatch empty_micro_batch(int64_t batch, int64_t seq_length) {
  check(batch >= 1, "SampleSource::read: batch below 1");
  MicroBatch result;
  result.batch = batch;
  result.seq_length = seq_length;
  for (auto* rows : {&result.tokens, &result.targets, &result.positions}) {
    rows->reserve(batch * seq_length);
  }
  result.segment_starts = {0};
  return result;
}

}  // namespace halfstep::data
