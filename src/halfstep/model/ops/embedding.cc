#include "halfstep/model/ops/embedding.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "halfstep/model/ops/dispatch.h"
#include "halfstep/model/parallel.h"

namespace halfstep::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table, const at::Tensor& tokens,
                            at::ScalarType compute) {
    ctx->save_for_backward({tokens});
    ctx->saved_data["vocab"] = table.size(0);
    ctx->saved_data["dtype"] = static_cast<int64_t>(table.scalar_type());
    return table.detach().index_select(0, tokens).to(compute);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grad_outputs) {
    const at::Tensor tokens = ctx->get_saved_variables()[0];
    const at::Tensor grad_y = grad_outputs[0].to(at::kFloat).contiguous();
    const int64_t hidden = grad_y.size(1);

    // Token positions grouped by token, in order inside a group.
    const auto [sorted, order] = tokens.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
    const auto [unique, inverse, counts] =
        at::unique_consecutive(sorted, /*return_inverse=*/false, /*return_counts=*/true);
    const at::Tensor ends = counts.cumsum(0);
    at::Tensor sums = at::zeros({unique.size(0), hidden}, grad_y.options());
    const float* from = data<float>(grad_y);
    const int64_t *position = data<int64_t>(order), *end = data<int64_t>(ends);
    float* to = data<float>(sums);
    parallel_rows(unique.size(0), 16, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        float* sum = to + row * hidden;
        for (int64_t i = row > 0 ? end[row - 1] : 0; i < end[row]; ++i) {
          const float* grad = from + position[i] * hidden;
          for (int64_t j = 0; j < hidden; ++j) sum[j] += grad[j];
        }
      }
    });
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    at::Tensor grad =
        at::zeros({ctx->saved_data["vocab"].toInt(), hidden}, grad_y.options().dtype(dtype));
    grad.index_copy_(0, unique, sums.to(dtype));
    return {grad, {}, {}};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& table, const at::Tensor& tokens, at::ScalarType compute) {
  return EmbeddingFunction::apply(table, tokens, compute);
}

}  // namespace halfstep::model
