// What the tests of optim share: small models as parameter lists, arenas for them, gradients that
// are a function of (parameter, step), and a fingerprint of everything an arena holds.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/optim/adamw.h"
#include "halfstep/optim/arenas.h"
#include "halfstep/optim/gradient_buffer.h"
#include "halfstep/optim/weights.h"

namespace halfstep::optim::testing {

inline arch::Parameter parameter(std::string name, std::vector<int64_t> shape,
                                 arch::ParameterKind kind = arch::ParameterKind::kLinear) {
  return {.name = std::move(name), .shape = std::move(shape), .kind = kind, .init_std = 0.02};
}

// A slice of a transformer, with sizes that leave padding behind.
inline std::vector<arch::Parameter> small_model() {
  using enum arch::ParameterKind;
  return {parameter("model.embed_tokens.weight", {131, 24}, kEmbedding),
          parameter("model.layers.0.self_attn.q_proj.weight", {32, 24}),
          parameter("model.layers.0.self_attn.q_proj.bias", {32}, kBias),
          parameter("model.layers.0.self_attn.q_norm.weight", {7}, kNorm),
          parameter("model.layers.0.mlp.up_proj.weight", {200, 24}),
          parameter("model.norm.weight", {24}, kNorm)};
}

inline constexpr layout::StorageFormat kBaseline{};
inline constexpr layout::StorageFormat kAllFp32{.weight = Dtype::kF32, .master = MasterMode::kNone};
inline constexpr layout::StorageFormat kO2{
    .gradient = Dtype::kBF16, .exp_avg = Dtype::kBF16, .exp_avg_sq = Dtype::kBF16};
inline constexpr layout::StorageFormat kO2Split{.gradient = Dtype::kBF16,
                                                .master = MasterMode::kSplit,
                                                .exp_avg = Dtype::kBF16,
                                                .exp_avg_sq = Dtype::kUE6M10};
inline constexpr layout::StorageFormat kO2NoMaster{.gradient = Dtype::kBF16,
                                                   .master = MasterMode::kNone,
                                                   .exp_avg = Dtype::kBF16,
                                                   .exp_avg_sq = Dtype::kBF16,
                                                   .amsgrad = true};

inline bool is_norm(const arch::Parameter& p) { return p.kind == arch::ParameterKind::kNorm; }

inline std::unique_ptr<Arenas> make_arenas(std::vector<arch::Parameter> parameters,
                                           const layout::LayoutOptions& options) {
  auto layout = layout::build_layout(parameters, options);
  return std::make_unique<Arenas>(std::move(parameters), std::move(layout));
}

// N(0, scale²) of the parameter's shape; the same for the same (parameter, step).
inline at::Tensor gradient(const Arenas& arenas, int64_t parameter, int64_t step,
                           double scale = 1e-2) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 * step + parameter + 1);
  return at::randn(arenas.parameters()[parameter].shape, generator) * scale;
}

// Gives every parameter one FP32 contribution.
inline void add_gradients(const Arenas& arenas, GradientBuffer& gradients, int64_t step) {
  for (int64_t p = 0; p < std::ssize(arenas.parameters()); ++p) {
    gradients.add(p, gradient(arenas, p, step));
  }
}

// A hash of every byte of the given classes, padding included.
inline uint64_t fingerprint(const Arenas& arenas,
                            std::vector<layout::MemoryClass> classes = {
                                layout::MemoryClass::kWeight, layout::MemoryClass::kMaster,
                                layout::MemoryClass::kExpAvg, layout::MemoryClass::kExpAvgSq,
                                layout::MemoryClass::kMaxExpAvgSq}) {
  uint64_t hash = fnv1a("");
  for (int64_t a = 0; a < std::ssize(arenas.layout().arenas); ++a) {
    for (const layout::MemoryClass c : classes) {
      const at::Tensor& flat = arenas.flat(c, a);
      if (!flat.defined()) continue;
      hash = fnv1a({static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()}, hash);
    }
  }
  return hash;
}

// The message and hint of the Error that `body` throws.
template <typename E, typename Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& e) {
    return std::string(e.what()) + " | " + e.hint();
  }
  return "no such error";
}

}  // namespace halfstep::optim::testing
