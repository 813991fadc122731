// Rows of the embedding table by token.
#pragma once

#include <ATen/core/Tensor.h>

namespace halfstep::model {

// tokens [T] int64 in [0, vocab) → [T, hidden] in the compute dtype. The gradient of a row is
// summed in FP32 in the order of the tokens and rounded once to the table's dtype, so that frequent
// tokens lose nothing in BF16.
at::Tensor embedding(const at::Tensor& table, const at::Tensor& tokens, at::ScalarType compute);

}  // namespace halfstep::model
