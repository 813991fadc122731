#include "halfstep/model/ops/rms_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "halfstep/model/ops/dispatch.h"
#include "halfstep/model/parallel.h"

namespace halfstep::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Outputs: normed, and with `fork` x itself.
class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               double eps, bool fork) {
    const int64_t rows = x.size(0), cols = x.size(1);
    const at::Tensor w = weight.detach().to(at::kFloat);
    at::Tensor y = at::empty_like(x);
    at::Tensor inv_rms = at::empty({rows}, x.options().dtype(at::kFloat));
    for_activation_type(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      const T* in = data<T>(x);
      T* out = data<T>(y);
      float* inv = data<float>(inv_rms);
      parallel_rows(rows, rows_per_block(cols), [&](int64_t begin, int64_t end) {
        rms_norm_rows(in + begin * cols, data<float>(w), eps, end - begin, cols, out + begin * cols,
                      inv + begin);
      });
    });
    ctx->save_for_backward({x, weight, inv_rms});
    return fork ? variable_list{y, x} : variable_list{y};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &inv_rms = saved[2];
    const int64_t rows = x.size(0), cols = x.size(1), block = rows_per_block(cols);
    const at::Tensor w = weight.detach().to(at::kFloat);
    const at::Tensor grad_y =
        grad_outputs[0].defined() ? grad_outputs[0].contiguous() : at::zeros_like(x);
    const at::Tensor residual = grad_outputs.size() > 1 && grad_outputs[1].defined()
                                    ? grad_outputs[1].contiguous()
                                    : at::Tensor();
    at::Tensor grad_x = at::empty_like(x);
    at::Tensor grad_w = at::zeros({(rows + block - 1) / block, cols}, inv_rms.options());
    for_activation_type(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      parallel_rows(rows, block, [&](int64_t begin, int64_t end) {
        const int64_t at = begin * cols;
        rms_norm_backward_rows(
            data<T>(x) + at, data<float>(w), data<float>(inv_rms) + begin, data<T>(grad_y) + at,
            residual.defined() ? data<T>(residual) + at : nullptr, end - begin, cols,
            data<T>(grad_x) + at, data<float>(grad_w) + begin / block * cols);
      });
    });
    return {grad_x, grad_w.sum(0).to(weight.scalar_type()), {}, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormFunction::apply(x, weight, eps, /*fork=*/false)[0];
}

Fork rms_norm_fork(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const variable_list outputs = RmsNormFunction::apply(x, weight, eps, /*fork=*/true);
  return {.residual = outputs[1], .normed = outputs[0]};
}

}  // namespace halfstep::model
