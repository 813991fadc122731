#include "halfstep/model/parallel.h"

#include <exception>

namespace halfstep::model {

void parallel_blocks(int64_t num_blocks, void (*body)(void*, int64_t), void* context) {
  if (num_blocks < 2) {
    if (num_blocks == 1) body(context, 0);
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < num_blocks; ++i) {
    try {
      body(context, i);
    } catch (...) {  // an exception must not leave the parallel region
#pragma omp critical(halfstep_model_parallel_failure)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace halfstep::model
