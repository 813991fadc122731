#include "halfstep/model/ops/swiglu.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "halfstep/model/ops/dispatch.h"
#include "halfstep/model/parallel.h"

namespace halfstep::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    const int64_t rows = gate_up.size(0), cols = gate_up.size(1) / 2;
    at::Tensor y = gate_up.new_empty({rows, cols});
    for_activation_type(gate_up.scalar_type(), [&](auto type) {
      using T = decltype(type);
      parallel_rows(rows, rows_per_block(cols), [&](int64_t begin, int64_t end) {
        swiglu_rows(data<T>(gate_up) + 2 * begin * cols, end - begin, cols,
                    data<T>(y) + begin * cols);
      });
    });
    ctx->save_for_backward({gate_up});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grad_outputs) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    const int64_t rows = gate_up.size(0), cols = gate_up.size(1) / 2;
    const at::Tensor grad_y = grad_outputs[0].contiguous();
    at::Tensor grad = at::empty_like(gate_up);
    for_activation_type(gate_up.scalar_type(), [&](auto type) {
      using T = decltype(type);
      parallel_rows(rows, rows_per_block(cols), [&](int64_t begin, int64_t end) {
        swiglu_backward_rows(data<T>(gate_up) + 2 * begin * cols, data<T>(grad_y) + begin * cols,
                             end - begin, cols, data<T>(grad) + 2 * begin * cols);
      });
    });
    return {grad};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) { return SwigluFunction::apply(gate_up); }

}  // namespace halfstep::model
