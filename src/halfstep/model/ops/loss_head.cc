#include "halfstep/model/ops/loss_head.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "halfstep/model/model.h"
#include "halfstep/model/ops/dispatch.h"
#include "halfstep/model/parallel.h"

namespace halfstep::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor chunk_logits(const at::Tensor& hidden, const at::Tensor& weight) {
  return at::mm(hidden, weight.t()).to(at::kFloat);
}

class LossHeadFunction : public torch::autograd::Function<LossHeadFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& leaf,
                            const at::Tensor& targets, const LossHead& head) {
    const int64_t tokens = hidden.size(0), vocab = leaf.size(0);
    const at::Tensor weight = leaf.detach().to(hidden.scalar_type());
    at::Tensor lse = at::empty({tokens}, hidden.options().dtype(at::kFloat));
    at::Tensor logits;
    double loss = 0;
    for (int64_t begin = 0; begin < tokens; begin += head.chunk_tokens) {
      const int64_t rows = std::min(head.chunk_tokens, tokens - begin);
      logits = at::Tensor();  // the previous chunk's, before the next is made
      logits = chunk_logits(hidden.narrow(0, begin, rows), weight);
      const float* in = data<float>(logits);
      float* out = data<float>(lse) + begin;
      parallel_rows(rows, rows_per_block(vocab), [&](int64_t b, int64_t e) {
        log_sum_exp_rows(in + b * vocab, e - b, vocab, out + b);
      });
      const int64_t* target = data<int64_t>(targets) + begin;
      for (int64_t r = 0; r < rows; ++r) {
        if (target[r] >= 0) loss += static_cast<double>(out[r]) - in[r * vocab + target[r]];
      }
    }
    ctx->save_for_backward({hidden, leaf, targets, lse});
    // Not a saved variable: backward turns it into the gradient in place.
    ctx->saved_data["last_logits"] = logits;
    ctx->saved_data["chunk_tokens"] = head.chunk_tokens;
    ctx->saved_data["parameter"] = head.parameter;
    ctx->saved_data["sink"] = reinterpret_cast<int64_t>(head.sink);
    return at::scalar_tensor(loss, hidden.options().dtype(at::kFloat));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grad_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &hidden = saved[0], &leaf = saved[1], &targets = saved[2], &lse = saved[3];
    const at::ScalarType compute = hidden.scalar_type();
    const int64_t tokens = hidden.size(0), vocab = leaf.size(0);
    const int64_t chunk = ctx->saved_data["chunk_tokens"].toInt();
    auto* sink = reinterpret_cast<WeightGradientSink*>(ctx->saved_data["sink"].toInt());
    const at::Tensor weight = leaf.detach().to(compute);
    const float scale = grad_outputs[0].item<float>();
    const bool wants_weight = ctx->needs_input_grad(1);

    at::Tensor last = ctx->saved_data["last_logits"].toTensor();
    ctx->saved_data.erase("last_logits");
    check(last.defined() || tokens == 0, "loss: backward through the same loss twice");
    at::Tensor grad_hidden = at::empty_like(hidden);
    at::Tensor grad_weight;
    for (int64_t begin = (tokens - 1) / chunk * chunk; begin >= 0; begin -= chunk) {
      const int64_t rows = std::min(chunk, tokens - begin);
      const at::Tensor part = hidden.narrow(0, begin, rows);
      at::Tensor grad = last.defined() ? last : chunk_logits(part, weight);
      last = at::Tensor();
      float* logits = data<float>(grad);
      parallel_rows(rows, rows_per_block(vocab), [&](int64_t b, int64_t e) {
        cross_entropy_gradient_rows(logits + b * vocab, data<float>(lse) + begin + b,
                                    data<int64_t>(targets) + begin + b, scale, e - b, vocab);
      });
      grad = grad.to(compute);
      at::Tensor grad_part = grad_hidden.narrow(0, begin, rows);
      at::mm_out(grad_part, grad, weight);
      if (!wants_weight) continue;
      if (!grad_weight.defined() && sink != nullptr &&
          sink->add_product(ctx->saved_data["parameter"].toInt(), 1, grad, part)) {
        continue;
      }
      if (!grad_weight.defined()) {
        grad_weight = at::zeros(leaf.sizes(), hidden.options().dtype(at::kFloat));
      }
      if (compute == at::kFloat) {
        grad_weight.addmm_(grad.t(), part);
      } else {
        grad_weight.add_(at::mm(grad.t(), part));
      }
    }
    if (grad_weight.defined()) grad_weight = grad_weight.to(leaf.scalar_type());
    return {grad_hidden, grad_weight, {}, {}};
  }
};

}  // namespace

at::Tensor cross_entropy_sum(const at::Tensor& hidden, const LossHead& head,
                             const at::Tensor& targets) {
  check(head.chunk_tokens > 0, "loss: chunk_tokens must be positive");
  return LossHeadFunction::apply(hidden, head.weight, targets, head);
}

}  // namespace halfstep::model
