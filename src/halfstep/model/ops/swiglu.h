// SwiGLU over the fused gate and up projections.
#pragma once

#include <ATen/core/Tensor.h>

namespace halfstep::model {

// gate_up [T, 2 · ffn] → silu(gate) · up, [T, ffn].
at::Tensor swiglu(const at::Tensor& gate_up);

}  // namespace halfstep::model
