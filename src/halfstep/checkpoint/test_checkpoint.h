// Tensors and a state for the tests of this module, as functions of a number, so that a test can
// tell from the bytes alone which save they come from. Only for tests.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "halfstep/checkpoint/slice.h"
#include "halfstep/checkpoint/train_state.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/comm/single_rank.h"
#include "halfstep/core/hash.h"
#include "halfstep/core/philox.h"
#include "halfstep/core/split_weight.h"

namespace halfstep::checkpoint {

// Memory for a set of slices.
class TestTensors {
 public:
  void add(const Slice& slice) {
    slices_.push_back(slice);
    data_.emplace_back(static_cast<size_t>(slice.bytes()), std::byte{0xEE});
  }
  std::vector<TensorSlice> tensors() const {
    std::vector<TensorSlice> out;
    for (size_t i = 0; i < slices_.size(); ++i) out.push_back({slices_[i], data_[i].data()});
    return out;
  }
  std::vector<MutableSlice> mutable_slices() {
    std::vector<MutableSlice> out;
    for (size_t i = 0; i < slices_.size(); ++i) out.push_back({slices_[i], data_[i].data()});
    return out;
  }
  template <typename T>
  T* at(size_t i) {
    return reinterpret_cast<T*>(data_[i].data());
  }
  const std::vector<std::vector<std::byte>>& bytes() const { return data_; }
  const std::vector<Slice>& slices() const { return slices_; }

 private:
  std::vector<Slice> slices_;
  std::vector<std::vector<std::byte>> data_;
};

// A parameter's FP32 values as a function of (seed, name, element).
inline float test_value(uint64_t seed, const std::string& name, int64_t element) {
  const NoiseStream stream{.seed = seed,
                           .name_hash = fnv1a(name),
                           .step = 0,
                           .purpose = NoisePurpose::kInit,
                           .micro_step = 0};
  const uint32_t high = stream.bits16(2 * element), low = stream.bits16(2 * element + 1);
  return (static_cast<float>(high << 8 | low >> 8) * 0x1p-24f + 0x1p-10f) * (low & 1 ? -1.f : 1.f);
}

// The whole parameters of a small split-master O2 model, filled from `seed`.
inline TestTensors test_model(uint64_t seed) {
  TestTensors out;
  const std::vector<std::pair<std::string, std::vector<int64_t>>> parameters{
      {"embed.weight", {50, 12}}, {"norm.weight", {7}}, {"mlp.weight", {12, 33}}};
  for (const auto& [name, shape] : parameters) {
    const size_t first = out.slices().size();
    out.add(whole_slice(TensorKind::kWeight, name, shape, Dtype::kBF16));
    out.add(whole_slice(TensorKind::kRemainder, name, shape, Dtype::kI16));
    out.add(whole_slice(TensorKind::kExpAvg, name, shape, Dtype::kF32));
    out.add(whole_slice(TensorKind::kExpAvgSq, name, shape, Dtype::kUE6M10));
    for (int64_t i = 0; i < out.slices()[first].numel; ++i) {
      const SplitWeight split = split_f32(test_value(seed, name, i));
      out.at<uint16_t>(first)[i] = split.weight;
      out.at<int16_t>(first + 1)[i] = split.remainder;
      out.at<float>(first + 2)[i] = test_value(seed + 1, name, i);
      out.at<uint16_t>(first + 3)[i] =
          static_cast<uint16_t>(30000 + 1000 * test_value(seed + 2, name, i));
    }
  }
  return out;
}

// The same slices with other bytes in them.
inline TestTensors empty_like(const TestTensors& tensors) {
  TestTensors out;
  for (const Slice& slice : tensors.slices()) out.add(slice);
  return out;
}

// Rank r's part of a whole slice: an uneven cut, empty for some ranks of small parameters.
inline Slice part_of(const Slice& whole, int rank, int size) {
  Slice part = whole;
  const int64_t step = (whole.numel + size - 1) / size;
  part.start = std::min(rank * step, whole.numel);
  part.numel = std::min(step, whole.numel - part.start);
  return part;
}

// The parts of all tensors, in the memory of `model`.
template <typename SliceWithData>
std::vector<SliceWithData> parts_of(const std::vector<SliceWithData>& model, int rank, int size) {
  std::vector<SliceWithData> parts;
  for (const auto& whole : model) {
    SliceWithData part;
    static_cast<Slice&>(part) = part_of(whole, rank, size);
    using Byte =
        std::conditional_t<std::is_same_v<SliceWithData, TensorSlice>, const std::byte, std::byte>;
    part.data = static_cast<Byte*>(whole.data) + part.start * dtype_bytes(part.dtype);
    parts.push_back(part);
  }
  return parts;
}

// A save by a process that is alone.
inline SaveResult save_alone(const std::filesystem::path& dir, const TrainState& state,
                             std::span<const TensorSlice> slices,
                             const RetentionPolicy& policy = {}) {
  comm::SingleRank ranks;
  return save_checkpoint(dir, state, slices, policy, ranks);
}

inline TrainState test_state(int64_t iteration) {
  TrainState state;
  state.iteration = iteration;
  state.t = iteration > 2 ? iteration - 2 : 0;
  state.t_exceptions = {{"norm.weight", 3}};
  state.consumed_samples = 16 * iteration;
  state.consumed_tokens = (int64_t{1} << 53) + 1;  // more digits than a double
  state.skipped_steps = 2;
  state.consecutive_skipped_steps = 1;
  state.seed = 0xFEDCBA9876543210;
  state.data_fingerprint = UINT64_MAX;
  state.torch_threads = 2;
  state.storage = {.weight = Dtype::kBF16,
                   .gradient = Dtype::kBF16,
                   .master = MasterMode::kSplit,
                   .exp_avg = Dtype::kF32,
                   .exp_avg_sq = Dtype::kUE6M10,
                   .amsgrad = false};
  state.fp32_params = {"norm.weight"};
  state.hyperparameters = {{"lr", 1.25e-6}, {"beta2", 0.999}};
  state.model_config = {{"hidden_size", 12}};
  state.data = {{"seq_length", 32}};
  return state;
}

}  // namespace halfstep::checkpoint
