#include "halfstep/model/init.h"

#include <algorithm>

#include "halfstep/core/bf16.h"
#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/kernels/vector_ops.h"

namespace halfstep::model {
namespace {

void fill(void* weight, Dtype dtype, int64_t n, float value) {
  if (dtype == Dtype::kF32) {
    std::fill_n(static_cast<float*>(weight), n, value);
  } else {
    std::fill_n(static_cast<uint16_t*>(weight), n, bf16_nearest(value));
  }
}

}  // namespace

void initialise_parameter(const arch::Parameter& parameter, Dtype dtype, void* weight,
                          uint64_t seed) {
  check(dtype == Dtype::kF32 || dtype == Dtype::kBF16, "initial weights are FP32 or BF16");
  switch (parameter.kind) {
    case arch::ParameterKind::kNorm:
      return fill(weight, dtype, parameter.numel(), 1.0f);
    case arch::ParameterKind::kBias:
      return fill(weight, dtype, parameter.numel(), 0.0f);
    case arch::ParameterKind::kEmbedding:
    case arch::ParameterKind::kLinear: {
      const NoiseStream stream{
          .seed = seed, .name_hash = fnv1a(parameter.name), .purpose = NoisePurpose::kInit};
      return kernels::init_normal(weight, dtype, parameter.numel(), parameter.init_std,
                                  {.stream = stream, .first = 0});
    }
  }
}

}  // namespace halfstep::model
