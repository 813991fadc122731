#include "halfstep/model/ops/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "halfstep/core/error.h"
#include "halfstep/model/model.h"

namespace halfstep::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor stack_if_adjacent(const std::vector<at::Tensor>& weights) {
  const at::Tensor& first = weights.front();
  const char* end = static_cast<const char*>(first.const_data_ptr());
  int64_t rows = 0;
  for (const at::Tensor& w : weights) {
    // Adjacent addresses of different storages are chance: no view could reach over them.
    if (!w.is_contiguous() || w.scalar_type() != first.scalar_type() || !w.is_alias_of(first) ||
        w.const_data_ptr() != end) {
      return {};
    }
    end += w.nbytes();
    rows += w.size(0);
  }
  return first.detach().as_strided({rows, first.size(1)}, {first.size(1), 1});
}

// The matrices that a product has to be made with: the stacked one, or each.
std::vector<at::Tensor> matrices(const variable_list& saved_weights, at::ScalarType compute) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& w : saved_weights) result.push_back(w.detach().to(compute));
  return result;
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  // `addend` is a bias [out], a residual [T, out], or absent.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::optional<at::Tensor>& addend, at::TensorList leaves,
                            const LinearWeights& weights, WeightGradientSink* sink) {
    const variable_list factors =
        weights.stacked.defined() ? variable_list{weights.stacked} : variable_list(leaves.vec());
    variable_list saved{x};
    saved.insert(saved.end(), factors.begin(), factors.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["sink"] = reinterpret_cast<int64_t>(sink);
    ctx->saved_data["first_parameter"] = weights.first_parameter;
    std::vector<int64_t> rows;
    for (const at::Tensor& leaf : leaves) rows.push_back(leaf.size(0));
    ctx->saved_data["rows"] = rows;
    ctx->saved_data["addend"] = addend.has_value();
    if (addend) {
      ctx->saved_data["addend_dims"] = addend->dim();
      ctx->saved_data["addend_dtype"] = static_cast<int64_t>(addend->scalar_type());
    }

    at::Tensor y = x.new_empty({x.size(0), weights.out_features});
    if (addend) y.copy_(*addend);
    int64_t column = 0;
    for (const at::Tensor& w : matrices(factors, x.scalar_type())) {
      at::Tensor part = y.narrow(1, column, w.size(0));
      if (addend) {
        part.addmm_(x, w.t());
      } else {
        at::mm_out(part, x, w.t());
      }
      column += w.size(0);
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const variable_list factors(saved.begin() + 1, saved.end());
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    const at::Tensor grad_y = grad_outputs[0].contiguous();

    // Autograd's edges (absent tensors have none) and forward's arguments are numbered apart.
    const bool has_addend = ctx->saved_data["addend"].toBool();
    const size_t first_weight_edge = has_addend ? 2 : 1;
    constexpr size_t kX = 0, kAddend = 1, kWeights = 2;
    variable_list grads(kWeights + rows.size() + 2);
    if (ctx->needs_input_grad(0)) grads[kX] = input_gradient(grad_y, factors, x.scalar_type());
    if (has_addend && ctx->needs_input_grad(1)) {
      const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["addend_dtype"].toInt());
      const bool is_bias = ctx->saved_data["addend_dims"].toInt() == 1;
      grads[kAddend] = is_bias ? grad_y.sum(0, /*keepdim=*/false, at::kFloat).to(dtype) : grad_y;
    }
    bool any_weight = false;
    for (size_t i = 0; i < rows.size(); ++i) {
      any_weight |= ctx->needs_input_grad(first_weight_edge + i);
    }
    if (!any_weight) return grads;

    auto* sink = reinterpret_cast<WeightGradientSink*>(ctx->saved_data["sink"].toInt());
    const int64_t first = ctx->saved_data["first_parameter"].toInt();
    const bool stacked = factors.size() < rows.size();
    int64_t column = 0;
    for (size_t i = 0; i < factors.size(); ++i) {
      const int64_t out = factors[i].size(0);
      const at::Tensor grad_part = grad_y.narrow(1, column, out);
      column += out;
      const int64_t count = stacked ? static_cast<int64_t>(rows.size()) : 1;
      if (sink != nullptr &&
          sink->add_product(first + static_cast<int64_t>(i), count, grad_part, x)) {
        continue;
      }
      const at::Tensor grad_w = at::mm(grad_part.t(), x).to(factors[i].scalar_type());
      if (stacked) {
        const std::vector<at::Tensor> parts = grad_w.split_with_sizes(rows, 0);
        for (size_t j = 0; j < parts.size(); ++j) grads[kWeights + j] = parts[j];
      } else {
        grads[kWeights + i] = grad_w;
      }
    }
    return grads;
  }

 private:
  static at::Tensor input_gradient(const at::Tensor& grad_y, const variable_list& factors,
                                   at::ScalarType compute) {
    at::Tensor grad_x;
    int64_t column = 0;
    for (const at::Tensor& w : matrices(factors, compute)) {
      const at::Tensor grad_part = grad_y.narrow(1, column, w.size(0));
      if (grad_x.defined()) {
        grad_x.addmm_(grad_part, w);
      } else {
        grad_x = at::mm(grad_part, w);
      }
      column += w.size(0);
    }
    return grad_x;
  }
};

}  // namespace

LinearWeights::LinearWeights(std::vector<at::Tensor> leaves, int64_t first)
    : weights(std::move(leaves)), first_parameter(first) {
  for (const at::Tensor& w : weights) out_features += w.size(0);
  stacked = stack_if_adjacent(weights);
}

at::Tensor linear(const at::Tensor& x, const LinearWeights& weights, const at::Tensor& bias,
                  const at::Tensor& residual, WeightGradientSink* sink) {
  check(!bias.defined() || !residual.defined(), "linear: bias and residual together");
  const at::Tensor& addend = residual.defined() ? residual : bias;
  return LinearFunction::apply(x, addend.defined() ? std::optional(addend) : std::nullopt,
                               at::TensorList(weights.weights), weights, sink);
}

}  // namespace halfstep::model
