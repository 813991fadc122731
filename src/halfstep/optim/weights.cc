#include "halfstep/optim/weights.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/kernels/vector_ops.h"

namespace halfstep::optim {
namespace {

using layout::MemoryClass;

constexpr kernels::NoiseRun kNoNoise{};  // nearest rounding uses none

// One parameter's weight and master.
struct Target {
  Dtype dtype;
  MasterMode mode;
  void* weight;
  void* master;
  int64_t numel;
};

Target target_of(const Arenas& arenas, int64_t parameter) {
  const layout::StorageFormat& format = arenas.layout().arena_of(parameter).format;
  return {.dtype = format.weight,
          .mode = format.master,
          .weight = arenas.data(MemoryClass::kWeight, parameter),
          .master = arenas.data(MemoryClass::kMaster, parameter),
          .numel = arenas.parameters()[parameter].numel()};
}

void reset_master(const Target& to) {
  switch (to.mode) {
    case MasterMode::kFp32:
      kernels::convert(to.master, Dtype::kF32, to.weight, to.dtype, to.numel, Rounding::kNearest,
                       kNoNoise);
      return;
    case MasterMode::kSplit:
      std::fill_n(static_cast<int16_t*>(to.master), to.numel, int16_t{0});
      return;
    case MasterMode::kNone:
      return;
  }
}

}  // namespace

void init_weights(Arenas& arenas, uint64_t seed) {
  for (int64_t p = 0; p < std::ssize(arenas.parameters()); ++p) {
    const arch::Parameter& parameter = arenas.parameters()[p];
    const Target to = target_of(arenas, p);
    switch (parameter.kind) {
      case arch::ParameterKind::kNorm:
        arenas.view(MemoryClass::kWeight, p).fill_(1);
        break;
      case arch::ParameterKind::kBias:
        arenas.view(MemoryClass::kWeight, p).zero_();
        break;
      case arch::ParameterKind::kEmbedding:
      case arch::ParameterKind::kLinear:
        kernels::init_normal(to.weight, to.dtype, to.numel, parameter.init_std,
                             {.stream = {.seed = seed,
                                         .name_hash = fnv1a(parameter.name),
                                         .purpose = NoisePurpose::kInit}});
        break;
    }
    reset_master(to);
  }
}

int64_t set_weight(Arenas& arenas, int64_t parameter, const at::Tensor& source) {
  const arch::Parameter& target = arenas.parameters().at(parameter);
  if (source.sizes() != at::IntArrayRef(target.shape)) {
    throw InputError(fmt::format("weight '{}' has shape [{}], expected [{}]", target.name,
                                 fmt::join(source.sizes(), ", "), fmt::join(target.shape, ", ")));
  }
  const at::ScalarType type = source.scalar_type();
  if (!source.device().is_cpu() || (type != at::kBFloat16 && type != at::kFloat)) {
    throw InputError(fmt::format("weight '{}' is {} on {}, expected BFloat16 or Float on cpu",
                                 target.name, at::toString(type), source.device().str()));
  }
  const at::Tensor from = source.contiguous();
  const void* values = from.const_data_ptr();
  const Dtype from_dtype = type == at::kFloat ? Dtype::kF32 : Dtype::kBF16;
  const Target to = target_of(arenas, parameter);
  if (to.mode == MasterMode::kSplit && from_dtype == Dtype::kF32) {
    return kernels::split_master(static_cast<uint16_t*>(to.weight),
                                 static_cast<int16_t*>(to.master),
                                 static_cast<const float*>(values), to.numel);
  }
  kernels::convert(to.weight, to.dtype, values, from_dtype, to.numel, Rounding::kNearest, kNoNoise);
  if (to.mode == MasterMode::kFp32) {
    kernels::convert(to.master, Dtype::kF32, values, from_dtype, to.numel, Rounding::kNearest,
                     kNoNoise);
  } else {
    reset_master(to);
  }
  return 0;
}

void reset_masters(Arenas& arenas) {
  for (int64_t p = 0; p < std::ssize(arenas.parameters()); ++p) reset_master(target_of(arenas, p));
}

double weight_sum_squares(const Arenas& arenas, int64_t parameter) {
  const Target at = target_of(arenas, parameter);
  return kernels::sum_squares(at.weight, at.dtype, at.numel);
}

}  // namespace halfstep::optim
