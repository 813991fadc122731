// A parameter of a model as data: what layout, initialisation, checkpoints and the optimizer need
// to know about it, without any tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace halfstep::arch {

enum class ParameterKind : uint8_t {
  kEmbedding,  // [vocab, hidden]
  kLinear,     // [out, in], used as x · Wᵀ
  kBias,       // [out]
  kNorm,       // [size], initialised to 1
};

struct Parameter {
  std::string name;  // Hugging Face's unfused name, e.g. model.layers.3.mlp.up_proj.weight
  std::vector<int64_t> shape;  // one or two dimensions
  ParameterKind kind = ParameterKind::kLinear;
  double init_std = 0;  // of kEmbedding and kLinear; biases start at 0, norms at 1
  // Used on the same input as the parameter before it, so that one matmul can serve both where they
  // are adjacent in memory: layout cuts nothing between them.
  bool stacked_on_previous = false;

  int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
  int64_t cols() const { return shape.back(); }
  int64_t numel() const { return rows() * cols(); }
  // 1-D parameters and biases are not decayed.
  bool decayed() const { return shape.size() == 2; }
};

}  // namespace halfstep::arch
