// What a conversion reads: parameters with their weights and state, a piece at a time, from a
// checkpoint or a Hugging Face folder. Memory: one piece, and one chunk of a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "halfstep/arch/model_config.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/slice.h"
#include "halfstep/core/dtype.h"

namespace halfstep::convert {

using checkpoint::TensorKind;

struct Tensor {
  std::string name;  // of the parameter
  std::vector<int64_t> shape;
};

// The elements [first, first + count) of a tensor of a parameter, by its index.
struct Piece {
  TensorKind kind = TensorKind::kWeight;
  int64_t parameter = 0;
  int64_t first = 0, count = 0;
};

class Source {
 public:
  virtual ~Source() = default;

  const std::vector<Tensor>& parameters() const { return parameters_; }
  // How a tensor is stored, if `read` can copy it.
  virtual std::optional<Dtype> dtype(TensorKind kind, int64_t parameter) const = 0;
  // Whether more is stored of a weight's FP32 value than its BF16 rounding.
  virtual bool has_fp32_value(int64_t parameter) const = 0;
  virtual void read(const Piece& piece, void* out) = 0;
  // As FP32: of kWeight, kMaster and kRemainder the parameter's value, of state what is stored, 0
  // where there is none.
  virtual void read_values(const Piece& piece, float* out) = 0;

 protected:
  std::vector<Tensor> parameters_;
};

// All parameters of a checkpoint with their state, or the weights of a model alone. The reader must
// outlive it. Throws InputError for tensors that are missing, incomplete or of another shape.
std::unique_ptr<Source> open_checkpoint(const checkpoint::CheckpointReader& reader);
std::unique_ptr<Source> open_weights(const checkpoint::CheckpointReader& reader,
                                     const arch::ModelConfig& config);
// The parameters of arch::parameter_list(config), without state.
std::unique_ptr<Source> open_folder(const std::filesystem::path& folder,
                                    const arch::ModelConfig& config);

}  // namespace halfstep::convert
