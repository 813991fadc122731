#include "halfstep/optim/gradient_buffer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/kernels/vector_ops.h"

namespace halfstep::optim {
namespace {

using layout::MemoryClass;

constexpr int64_t kMaxMicroBatches = 65536;  // 16 bits of the noise's address

}  // namespace

// Takes a leaf's gradient out of autograd's hands as soon as it is complete.
class TakeGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  TakeGradient(GradientBuffer& buffer, int64_t parameter)
      : buffer_(buffer), parameter_(parameter) {}

  void operator()(const at::Tensor& leaf) override {
    buffer_.take(parameter_, leaf);
  }

 private:
  GradientBuffer& buffer_;
  int64_t parameter_;
};

void GradientBuffer::take(int64_t parameter, const at::Tensor& leaf) {
  const at::Tensor gradient = std::exchange(leaf.mutable_grad(), at::Tensor());
  // Undefined where add_product has taken all of it.
  if (gradient.defined()) add(parameter, gradient);
  if (listener_ != nullptr) listener_->gradient_complete(parameter);
}

GradientBuffer::GradientBuffer(Arenas& arenas, const GradientBufferOptions& options)
    : arenas_(arenas),
      options_(options),
      contributed_(arenas.parameters().size(), 0),
      updates_(arenas.parameters().size(), 0) {
  for (const layout::Arena& arena : arenas.layout().arenas) {
    const Dtype dtype = arena.format.gradient;
    if (options.fusion && dtype != Dtype::kF32) {
      throw UsageError(fmt::format("gradient accumulation fusion adds into fp32 gradients, but "
                                   "these are {}",
                                   dtype_name(dtype)),
                       "add --no-gradient-accumulation-fusion");
    }
    roundings_.push_back(
        kernels::choose_accumulation_rounding(dtype, options.micro_batches, options.rounding));
  }
  for (int64_t p = 0; p < std::ssize(arenas.parameters()); ++p) {
    name_hashes_.push_back(fnv1a(arenas.parameters()[p].name));
    torch::autograd::impl::set_post_acc_grad_hooks(arenas.weights()[p],
                                                   std::make_unique<TakeGradient>(*this, p));
  }
}

GradientBuffer::~GradientBuffer() {
  for (const at::Tensor& leaf : arenas_.weights()) {
    torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
  }
}

void GradientBuffer::begin_step(std::span<const int64_t> updates) {
  check(updates.size() == updates_.size(), "gradient buffer: updates of another model");
  std::ranges::copy(updates, updates_.begin());
  std::ranges::fill(contributed_, 0);
  micro_step_ = 0;
}

void GradientBuffer::begin_micro_batch(int64_t global_index) {
  const bool noisy = std::ranges::any_of(
      roundings_, [](const auto& r) { return r.rounding == Rounding::kStochastic; });
  if (global_index < 0 || (noisy && global_index >= kMaxMicroBatches)) {
    throw UsageError(fmt::format("micro-batch {} of a global batch; stochastic accumulation has "
                                 "noise for {}",
                                 global_index, kMaxMicroBatches),
                     "use larger micro-batches, or FP32 gradients (without --o2-gradient)");
  }
  micro_step_ = noisy ? static_cast<uint32_t>(global_index) : 0;
}

void GradientBuffer::finish_step() {
  for (int64_t p = 0; p < std::ssize(contributed_); ++p) {
    if (contributed_[p]) continue;
    const Dtype dtype = arenas_.layout().arena_of(p).format.gradient;
    std::memset(arenas_.data(MemoryClass::kGradient, p), 0,
                arenas_.parameters()[p].numel() * dtype_bytes(dtype));
  }
}

bool GradientBuffer::can_fuse(at::ScalarType compute) const {
  return options_.fusion && compute == at::kFloat;
}

bool GradientBuffer::add_product(int64_t parameter, int64_t count, const at::Tensor& grad_output,
                                 const at::Tensor& input) {
  const int64_t end = parameter + count;
  int64_t rows = 0;
  for (int64_t p = parameter; p < end; ++p) {
    if (arenas_.layout().arena_of(p).format.gradient != Dtype::kF32) return false;
    check(arenas_.parameters()[p].cols() == input.size(1), "add_product: columns of input");
    rows += arenas_.parameters()[p].rows();
  }
  check(rows == grad_output.size(1), "add_product: columns of grad_output");
  if (grad_output.scalar_type() != at::kFloat || input.scalar_type() != at::kFloat) return false;

  const at::NoGradGuard no_grad;
  if (options_.fusion) {
    add_fused(parameter, end, grad_output, input);
    return true;
  }
  const at::Tensor product = at::mm(grad_output.t(), input);
  for (int64_t row = 0; parameter < end; row += arenas_.parameters()[parameter++].rows()) {
    add(parameter, product.narrow(0, row, arenas_.parameters()[parameter].rows()));
  }
  return true;
}

void GradientBuffer::add_fused(int64_t parameter, int64_t end, const at::Tensor& grad_output,
                               const at::Tensor& input) {
  const layout::Layout& layout = arenas_.layout();
  const int64_t cols = input.size(1);
  int64_t row = 0;
  while (parameter < end) {
    // As many parameters at once as lie next to each other and agree on whether to overwrite.
    const int64_t first = parameter;
    const layout::Placement& start = layout.placement_of(first);
    int64_t numel = 0;
    do {
      numel += layout.placement_of(parameter++).numel;
    } while (parameter < end && contributed_[parameter] == contributed_[first] &&
             layout.locations[parameter].arena == layout.locations[first].arena &&
             layout.placement_of(parameter).offset == start.offset + numel);
    const int64_t rows = numel / cols;
    at::Tensor sum = arenas_.flat(MemoryClass::kGradient, layout.locations[first].arena)
                         .narrow(0, start.offset, numel)
                         .view({rows, cols});
    at::addmm_out(sum, sum, grad_output.narrow(1, row, rows).t(), input,
                  /*beta=*/contributed_[first] ? 1 : 0);
    std::fill(contributed_.begin() + first, contributed_.begin() + parameter, 1);
    row += rows;
  }
}

void GradientBuffer::add(int64_t parameter, const at::Tensor& gradient) {
  const at::ScalarType type = gradient.scalar_type();
  check(type == at::kFloat || type == at::kBFloat16, "gradient buffer: gradient of another dtype");
  const at::Tensor from = gradient.contiguous();
  const int64_t numel = arenas_.parameters()[parameter].numel();
  check(from.numel() == numel, "gradient buffer: gradient of another shape");
  const int64_t arena = arenas_.layout().locations[parameter].arena;
  const kernels::NoiseRun noise{.stream = {.seed = options_.seed,
                                           .name_hash = name_hashes_[parameter],
                                           .step = updates_[parameter] + 1,
                                           .purpose = NoisePurpose::kGradient,
                                           .micro_step = micro_step_}};
  const auto add_to = contributed_[parameter] ? kernels::accumulate : kernels::convert;
  add_to(arenas_.data(MemoryClass::kGradient, parameter),
         arenas_.layout().arenas[arena].format.gradient, from.const_data_ptr(),
         type == at::kFloat ? Dtype::kF32 : Dtype::kBF16, numel, roundings_[arena].rounding, noise,
         ThreadPool::global());
  contributed_[parameter] = 1;
}

}  // namespace halfstep::optim
