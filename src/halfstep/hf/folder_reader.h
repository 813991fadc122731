// Weights of a Hugging Face folder, read to plain memory: from model.safetensors, or from the
// shards of model.safetensors.index.json. Every tensor of the model is filled and every tensor of
// the files is used or named; anything else is an InputError with the tensor's name. Used by
// training, eval and generate (--load-hf) and by `halfstep convert`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "halfstep/arch/model_config.h"
#include "halfstep/core/dtype.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::hf {

// Where a parameter's elements are to go (read) or come from (write): FP32 or BF16, row-major.
struct WeightSlot {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
};

// Which file of the folder holds which tensor, all headers checked. Opened before anything is
// allocated, so that a bad folder costs nothing.
class FolderReader {
 public:
  // Checks names and shapes against `config`. What follows is decided by the tensors and the config
  // together: with tied embeddings lm_head.weight may be absent, or present and equal to the
  // embedding (all elements are compared); without, it must be there.
  FolderReader(const std::filesystem::path& folder, const arch::ModelConfig& config);
  ~FolderReader();
  FolderReader(FolderReader&&) noexcept;

  // Tensors in the files that the model does not use and that are known to be harmless (rotary
  // tables that old files store), for the log.
  const std::vector<std::string>& ignored() const;

  // True if a parameter's values, F32 or F16 in the file, need not fit into BF16.
  bool wider_than_bf16(int64_t parameter) const;

  // F32, F16 or BF16.
  io::SafetensorsDtype dtype(int64_t parameter) const;

  // Fills the slot of one parameter, by its index in arch::parameter_list. F32, F16 and BF16 are
  // read; to BF16 by rounding to nearest.
  void load(int64_t parameter, const WeightSlot& slot) const;
  // The same for the elements [first, first + count) only.
  void load(int64_t parameter, int64_t first, int64_t count, const WeightSlot& slot) const;
  // Fills one slot per parameter.
  void load(std::span<const WeightSlot> slots) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace halfstep::hf
