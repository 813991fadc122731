#include "halfstep/model/ops/rotary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numbers>

#include "halfstep/model/ops/dispatch.h"
#include "halfstep/model/parallel.h"

namespace halfstep::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeadCounts {
  int64_t heads, groups, head_dim;
  double eps;
};

// What the kernels need to know of q's heads, or of k's.
HeadRows head_rows(const HeadCounts& c, int64_t heads, const at::Tensor& norm_weight,
                   const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin) {
  return {.heads = heads,
          .head_dim = c.head_dim,
          .row_stride = (c.heads + 2 * c.groups) * c.head_dim,
          .norm_weight = norm_weight.defined() ? data<float>(norm_weight) : nullptr,
          .eps = c.eps,
          .positions = data<int64_t>(positions),
          .cos = data<float>(cos),
          .sin = data<float>(sin)};
}

HeadRows skip_rows(HeadRows h, int64_t rows) {
  h.positions += rows;
  return h;
}

at::Tensor as_float(const at::Tensor& weight) {
  return weight.defined() ? weight.detach().to(at::kFloat) : weight;
}

class SplitAndRotate : public torch::autograd::Function<SplitAndRotate> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv,
                               const std::optional<at::Tensor>& optional_q_norm,
                               const std::optional<at::Tensor>& optional_k_norm,
                               const at::Tensor& positions, const at::Tensor& cos,
                               const at::Tensor& sin, const HeadCounts& c) {
    const int64_t rows = qkv.size(0);
    const at::Tensor q_norm = optional_q_norm.value_or(at::Tensor());
    const at::Tensor k_norm = optional_k_norm.value_or(at::Tensor());
    at::Tensor q = qkv.new_empty({rows, c.heads, c.head_dim});
    at::Tensor k = qkv.new_empty({rows, c.groups, c.head_dim});
    at::Tensor inv_rms;
    if (q_norm.defined()) {
      inv_rms = at::empty({rows * (c.heads + c.groups)}, qkv.options().dtype(at::kFloat));
    }
    rotate(c, qkv, 0, c.heads, q_norm, positions, cos, sin, q, inv_rms, 0);
    rotate(c, qkv, c.heads, c.groups, k_norm, positions, cos, sin, k, inv_rms, rows * c.heads);
    // Without a norm the gradient does not depend on qkv; v keeps it alive all the same.
    ctx->save_for_backward({qkv, q_norm, k_norm, positions, cos, sin, inv_rms});
    ctx->saved_data["heads"] = c.heads;
    ctx->saved_data["groups"] = c.groups;
    ctx->saved_data["head_dim"] = c.head_dim;
    ctx->saved_data["eps"] = c.eps;
    const at::Tensor v = qkv.detach()
                             .narrow(1, (c.heads + c.groups) * c.head_dim, c.groups * c.head_dim)
                             .unflatten(1, {c.groups, c.head_dim});
    return {q, k, v};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &qkv = saved[0], &positions = saved[3], &cos = saved[4], &sin = saved[5];
    const at::Tensor& inv_rms = saved[6];
    const HeadCounts c{ctx->saved_data["heads"].toInt(), ctx->saved_data["groups"].toInt(),
                       ctx->saved_data["head_dim"].toInt(), ctx->saved_data["eps"].toDouble()};
    const int64_t rows = qkv.size(0);
    at::Tensor grad = at::empty_like(qkv);
    const at::Tensor grad_q_norm = rotate_backward(c, qkv, 0, c.heads, saved[1], positions, cos,
                                                   sin, inv_rms, 0, grad_outputs[0], grad);
    const at::Tensor grad_k_norm =
        rotate_backward(c, qkv, c.heads, c.groups, saved[2], positions, cos, sin, inv_rms,
                        rows * c.heads, grad_outputs[1], grad);
    at::Tensor grad_v = grad.narrow(1, (c.heads + c.groups) * c.head_dim, c.groups * c.head_dim)
                            .unflatten(1, {c.groups, c.head_dim});
    if (grad_outputs[2].defined()) {
      grad_v.copy_(grad_outputs[2]);
    } else {
      grad_v.zero_();
    }
    return {grad, grad_q_norm, grad_k_norm, {}, {}, {}, {}};
  }

 private:
  // The heads first_head … first_head + heads − 1 of qkv into out.
  static void rotate(const HeadCounts& c, const at::Tensor& qkv, int64_t first_head, int64_t heads,
                     const at::Tensor& norm, const at::Tensor& positions, const at::Tensor& cos,
                     const at::Tensor& sin, const at::Tensor& out, const at::Tensor& inv_rms,
                     int64_t inv_rms_offset) {
    const at::Tensor weight = as_float(norm);
    const HeadRows h = head_rows(c, heads, weight, positions, cos, sin);
    float* inv = inv_rms.defined() ? data<float>(inv_rms) + inv_rms_offset : nullptr;
    for_activation_type(qkv.scalar_type(), [&](auto type) {
      using T = decltype(type);
      const T* in = data<T>(qkv) + first_head * c.head_dim;
      parallel_rows(qkv.size(0), rows_per_block(heads * c.head_dim), [&](int64_t b, int64_t e) {
        rotate_heads(skip_rows(h, b), in + b * h.row_stride, e - b,
                     data<T>(out) + b * heads * c.head_dim,
                     inv != nullptr ? inv + b * heads : nullptr);
      });
    });
  }

  // Writes the gradient of those heads into grad; returns that of the norm's weight.
  static at::Tensor rotate_backward(const HeadCounts& c, const at::Tensor& qkv, int64_t first_head,
                                    int64_t heads, const at::Tensor& norm,
                                    const at::Tensor& positions, const at::Tensor& cos,
                                    const at::Tensor& sin, const at::Tensor& inv_rms,
                                    int64_t inv_rms_offset, const at::Tensor& grad_out,
                                    const at::Tensor& grad) {
    const int64_t rows = qkv.size(0), block = rows_per_block(heads * c.head_dim);
    const at::Tensor weight = as_float(norm);
    const HeadRows h = head_rows(c, heads, weight, positions, cos, sin);
    const float* inv = inv_rms.defined() ? data<float>(inv_rms) + inv_rms_offset : nullptr;
    const at::Tensor grad_in = grad_out.defined()
                                   ? grad_out.contiguous()
                                   : at::zeros({rows, heads, c.head_dim}, qkv.options());
    at::Tensor grad_norm;
    if (norm.defined()) {
      grad_norm = at::zeros({(rows + block - 1) / block, c.head_dim}, weight.options());
    }
    for_activation_type(qkv.scalar_type(), [&](auto type) {
      using T = decltype(type);
      const int64_t column = first_head * c.head_dim;
      parallel_rows(rows, block, [&](int64_t b, int64_t e) {
        rotate_heads_backward(
            skip_rows(h, b), data<T>(qkv) + column + b * h.row_stride,
            inv != nullptr ? inv + b * heads : nullptr, data<T>(grad_in) + b * heads * c.head_dim,
            e - b, data<T>(grad) + column + b * h.row_stride,
            grad_norm.defined() ? data<float>(grad_norm) + b / block * c.head_dim : nullptr);
      });
    });
    return grad_norm.defined() ? grad_norm.sum(0).to(norm.scalar_type()) : at::Tensor();
  }
};

}  // namespace

at::Tensor rotary_inverse_frequencies(const arch::ModelConfig& config) {
  const at::Tensor exponent =
      at::arange(0, config.head_dim, 2, at::kLong).to(at::kFloat).div(config.head_dim);
  const at::Tensor inverse = at::pow(config.rope_theta, exponent).reciprocal();
  if (!config.rope_scaling) return inverse;

  // Llama 3: long wavelengths are stretched by `factor`, short ones kept, and those between the two
  // limits are blended linearly in (context / wavelength).
  const auto& s = *config.rope_scaling;
  const auto context = static_cast<double>(s.original_max_position_embeddings);
  const at::Tensor wavelength = inverse.reciprocal().mul(2 * std::numbers::pi);
  const at::Tensor stretched =
      at::where(wavelength > context / s.low_freq_factor, inverse / s.factor, inverse);
  const at::Tensor share = (wavelength.reciprocal().mul(context) - s.low_freq_factor) /
                           (s.high_freq_factor - s.low_freq_factor);
  const at::Tensor blend = (1 - share) * stretched / s.factor + share * stretched;
  const at::Tensor between = (wavelength >= context / s.high_freq_factor)
                                 .logical_and(wavelength <= context / s.low_freq_factor);
  return at::where(between, blend, stretched);
}

RotaryTable rotary_table(const at::Tensor& inverse_frequencies, int64_t positions) {
  const at::Tensor angles =
      at::outer(at::arange(positions, inverse_frequencies.options()), inverse_frequencies);
  return {.cos = angles.cos(), .sin = angles.sin()};
}

AttentionInputs split_and_rotate(const at::Tensor& qkv, const at::Tensor& q_norm,
                                 const at::Tensor& k_norm, const at::Tensor& positions,
                                 const RotaryTable& table, const arch::ModelConfig& config) {
  const HeadCounts counts{config.num_attention_heads, config.num_query_groups, config.head_dim,
                          config.norm_eps};
  // Absent tensors must be absent for autograd too: an undefined one has no device.
  const auto optional = [](const at::Tensor& t) {
    return t.defined() ? std::optional(t) : std::nullopt;
  };
  const variable_list out = SplitAndRotate::apply(qkv, optional(q_norm), optional(k_norm),
                                                  positions, table.cos, table.sin, counts);
  return {.q = out[0], .k = out[1], .v = out[2]};
}

}  // namespace halfstep::model
