// Runs optim::AdamW with FP32 weights and state on gradients that it is given, for test_adamw.py.
//   adamw_trajectory STEPS LR BETA1 BETA2 EPS WEIGHT_DECAY CLIP LOSS_WEIGHT < in > out
// All numbers are little-endian FP32, parameters in the order of `kParameters`. In: the weights,
// then one gradient sum per step. Out, per step: the norm before clipping, the clip factor, and the
// weights after it.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "halfstep/core/error.h"
#include "halfstep/optim/adamw.h"
#include "halfstep/optim/weights.h"

using namespace halfstep;

namespace {

std::vector<arch::Parameter> parameters() {
  return {{.name = "matrix", .shape = {37, 24}},
          {.name = "vector", .shape = {50}, .kind = arch::ParameterKind::kNorm}};
}

at::Tensor read_tensor(const std::vector<int64_t>& shape) {
  at::Tensor t = at::empty(shape, at::kFloat);
  const auto count = static_cast<size_t>(t.numel());
  if (std::fread(t.data_ptr(), sizeof(float), count, stdin) != count) {
    throw InputError("standard input ends early");
  }
  return t;
}

void write(const void* values, size_t count) {
  if (std::fwrite(values, sizeof(float), count, stdout) != count) {
    throw InputError("cannot write to standard output");
  }
}

void run(char** args) {
  const auto number = [&](int i) { return std::strtod(args[i], nullptr); };
  const layout::LayoutOptions fp32{.format = {.weight = Dtype::kF32, .master = MasterMode::kNone}};
  optim::Arenas arenas(parameters(), layout::build_layout(parameters(), fp32));
  optim::GradientBuffer gradients(arenas, {});
  optim::AdamW adamw(arenas, {.beta1 = number(3),
                              .beta2 = number(4),
                              .eps = number(5),
                              .weight_decay = number(6),
                              .clip_grad = number(7)});
  const auto count = static_cast<int64_t>(arenas.parameters().size());
  for (int64_t p = 0; p < count; ++p) {
    optim::set_weight(arenas, p, read_tensor(arenas.parameters()[p].shape));
  }
  for (int64_t step = 0; step < static_cast<int64_t>(number(1)); ++step) {
    gradients.begin_step(adamw.updates());
    for (int64_t p = 0; p < count; ++p) {
      gradients.add(p, read_tensor(arenas.parameters()[p].shape));
    }
    const auto result = adamw.step(gradients, {.lr = number(2), .loss_weight = number(8)});
    const float scalars[] = {static_cast<float>(result.grad_norm),
                             static_cast<float>(result.clip_coefficient)};
    write(scalars, 2);
    for (int64_t p = 0; p < count; ++p) {
      write(arenas.data(layout::MemoryClass::kWeight, p),
            static_cast<size_t>(arenas.parameters()[p].numel()));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    fmt::print(stderr, "expected 8 numbers, got {}\n", argc - 1);
    return static_cast<int>(ExitCode::kUsage);
  }
  try {
    run(argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return static_cast<int>(ExitCode::kInternal);
  }
  return 0;
}
