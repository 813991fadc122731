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

// The owned slice's master := its weight.
void reset_master(const Arenas& arenas, const layout::ShardSlice& slice) {
  const layout::StorageFormat& format = arenas.layout().arenas[slice.arena].format;
  void* master = arenas.data(MemoryClass::kMaster, slice);
  switch (format.master) {
    case MasterMode::kFp32:
      kernels::convert(master, Dtype::kF32, arenas.data(MemoryClass::kWeight, slice), format.weight,
                       slice.numel, Rounding::kNearest, kNoNoise);
      return;
    case MasterMode::kSplit:
      std::fill_n(static_cast<int16_t*>(master), slice.numel, int16_t{0});
      return;
    case MasterMode::kNone:
      return;
  }
}

// The owned slice's master := FP32 values (of the whole parameter), whose weight is their RNE.
// Returns the number of ties of a split master.
int64_t set_master(const Arenas& arenas, const layout::ShardSlice& slice, const float* values) {
  void* master = arenas.data(MemoryClass::kMaster, slice);
  switch (arenas.layout().arenas[slice.arena].format.master) {
    case MasterMode::kFp32:
      std::copy_n(values + slice.first, slice.numel, static_cast<float*>(master));
      return 0;
    case MasterMode::kSplit:
      return kernels::split_master(
          static_cast<uint16_t*>(arenas.data(MemoryClass::kWeight, slice)),
          static_cast<int16_t*>(master), values + slice.first, slice.numel);
    case MasterMode::kNone:
      return 0;
  }
  return 0;
}

}  // namespace

void init_weights(Arenas& arenas, uint64_t seed) {
  for (int64_t p = 0; p < std::ssize(arenas.parameters()); ++p) {
    const arch::Parameter& parameter = arenas.parameters()[p];
    const Dtype dtype = arenas.layout().arena_of(p).format.weight;
    switch (parameter.kind) {
      case arch::ParameterKind::kNorm:
        arenas.view(MemoryClass::kWeight, p).fill_(1);
        break;
      case arch::ParameterKind::kBias:
        arenas.view(MemoryClass::kWeight, p).zero_();
        break;
      case arch::ParameterKind::kEmbedding:
      case arch::ParameterKind::kLinear:
        kernels::init_normal(arenas.data(MemoryClass::kWeight, p), dtype, parameter.numel(),
                             parameter.init_std,
                             {.stream = {.seed = seed,
                                         .name_hash = fnv1a(parameter.name),
                                         .purpose = NoisePurpose::kInit}});
        break;
    }
  }
  reset_masters(arenas);
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
  kernels::convert(arenas.data(MemoryClass::kWeight, parameter),
                   arenas.layout().arena_of(parameter).format.weight, values, from_dtype,
                   target.numel(), Rounding::kNearest, kNoNoise);
  const layout::ShardSlice* const slice = arenas.owned(parameter);
  if (slice == nullptr) return 0;
  if (from_dtype == Dtype::kF32) {
    return set_master(arenas, *slice, static_cast<const float*>(values));
  }
  reset_master(arenas, *slice);
  return 0;
}

void reset_masters(Arenas& arenas) {
  for (const layout::ShardSlice& slice : arenas.shard()) reset_master(arenas, slice);
}

double weight_sum_squares(const Arenas& arenas, int64_t parameter) {
  return kernels::sum_squares(arenas.data(MemoryClass::kWeight, parameter),
                              arenas.layout().arena_of(parameter).format.weight,
                              arenas.parameters()[parameter].numel());
}

}  // namespace halfstep::optim
