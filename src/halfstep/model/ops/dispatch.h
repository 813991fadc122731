// From tensors to row kernels: the element type of activations, and checked pointers.
#pragma once

#include <ATen/core/Tensor.h>

#include "halfstep/core/error.h"
#include "halfstep/model/row_kernels.h"

namespace halfstep::model {

// Calls body(T{}) with the storage type of `dtype`: float or Bf16.
template <typename Body>
void for_activation_type(at::ScalarType dtype, Body&& body) {
  if (dtype == at::kFloat) {
    body(float{});
  } else {
    check(dtype == at::kBFloat16, "activations are neither FP32 nor BF16");
    body(Bf16{});
  }
}

template <typename T>
T* data(const at::Tensor& tensor) {
  check(tensor.is_contiguous() && tensor.device().is_cpu() &&
            tensor.element_size() == static_cast<int64_t>(sizeof(T)),
        "row kernel: a tensor is not contiguous, on another device or of another type");
  return static_cast<T*>(tensor.data_ptr());
}

}  // namespace halfstep::model
