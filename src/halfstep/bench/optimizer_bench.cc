#include "halfstep/bench/optimizer_bench.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "halfstep/bench/stream.h"
#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/kernels/adamw.h"
#include "halfstep/kernels/vector_ops.h"

namespace halfstep::bench {
namespace {

using kernels::AdamwFormat;
using kernels::AdamwScalars;
using kernels::AdamwSlice;

constexpr kernels::AdamwHyperparameters kHyper{
    .lr = 1e-5, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
constexpr int64_t kStep = 100;

// The sizes of a Llama-shaped transformer's tensors, 22 layers of 9 and two embeddings, with about
// `elements` elements in all.
std::vector<int64_t> transformer_sizes(int64_t elements) {
  constexpr int64_t kLayers = 22, kVocabOverHidden = 8;
  // q, k, v, o with 4 heads a group; gate, up and down with 2.75 times the width.
  constexpr double kMatrices = 1 + 0.25 + 0.25 + 1 + 3 * 2.75;
  const double squared =
      static_cast<double>(elements) / (kLayers * kMatrices + 2 * kVocabOverHidden);
  const int64_t h = std::max<int64_t>(8, static_cast<int64_t>(std::sqrt(squared)) / 8 * 8);
  std::vector<int64_t> sizes{kVocabOverHidden * h * h};
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const int64_t ffn = h * h / 4 * 11;
    for (int64_t size : {h, h * h, h * h / 4, h * h / 4, h * h, h, ffn, ffn, ffn})
      sizes.push_back(size);
  }
  sizes.push_back(kVocabOverHidden * h * h);
  return sizes;
}

// Every array that some row needs, one after the other in memory of their own; the rows share them.
// A value stays ordinary however often it is stepped: the gradient never changes.
class Tensors {
 public:
  explicit Tensors(int64_t n)
      : master(at::empty({n}, at::kFloat)),
        exp_avg(at::zeros({n}, at::kFloat)),
        exp_avg_sq(at::empty({n}, at::kFloat)),
        grad(at::empty({n}, at::kFloat)),
        weight(at::empty({n}, at::kBFloat16)),
        grad_bf16(at::empty({n}, at::kBFloat16)),
        exp_avg_bf16(at::zeros({n}, at::kBFloat16)),
        exp_avg_sq_bf16(at::empty({n}, at::kBFloat16)),
        remainder(at::empty({n}, at::kShort)),
        exp_avg_sq_ue6m10(at::empty({n}, at::kShort)) {
    fill_normal(master, 0.02, "weight");
    fill_normal(grad, 1e-3, "gradient");
    exp_avg_sq.fill_(1e-6);
    exp_avg_sq_bf16.fill_(1e-6);
    grad_bf16.copy_(grad);
    kernels::convert(exp_avg_sq_ue6m10.data_ptr(), Dtype::kUE6M10, exp_avg_sq.data_ptr(),
                     Dtype::kF32, n, Rounding::kNearest, {});
    kernels::split_master(static_cast<uint16_t*>(weight.data_ptr()),
                          static_cast<int16_t*>(remainder.data_ptr()),
                          static_cast<const float*>(master.data_ptr()), n);
  }

  at::Tensor master, exp_avg, exp_avg_sq, grad;
  at::Tensor weight, grad_bf16, exp_avg_bf16, exp_avg_sq_bf16;
  at::Tensor remainder, exp_avg_sq_ue6m10;

 private:
  static void fill_normal(at::Tensor& x, double std, std::string_view name) {
    kernels::init_normal(x.data_ptr(), Dtype::kF32, x.numel(), std,
                         {.stream = {.name_hash = fnv1a(name), .purpose = NoisePurpose::kInit}});
  }
};

// A part [begin, begin + n) of the shared tensors.
struct Part {
  int64_t begin, n;
  at::Tensor of(const at::Tensor& x) const { return x.narrow(0, begin, n); }
  void* at(const at::Tensor& x) const {
    return static_cast<char*>(x.data_ptr()) + begin * static_cast<int64_t>(x.element_size());
  }
};

std::function<void()> our_step(const Tensors& x, const std::vector<Part>& parts,
                               const AdamwFormat& format) {
  auto scalars = std::make_shared<AdamwScalars>(kernels::adamw_scalars(kHyper, kStep, 1.0));
  std::vector<AdamwSlice> slices;
  for (const Part& part : parts) {
    slices.push_back({
        .weight = part.at(x.weight),
        .master = part.at(format.master == MasterMode::kSplit ? x.remainder : x.master),
        .grad = part.at(format.grad == Dtype::kBF16 ? x.grad_bf16 : x.grad),
        .exp_avg = part.at(format.exp_avg == Dtype::kBF16 ? x.exp_avg_bf16 : x.exp_avg),
        .exp_avg_sq = part.at(format.exp_avg_sq == Dtype::kBF16     ? x.exp_avg_sq_bf16
                              : format.exp_avg_sq == Dtype::kUE6M10 ? x.exp_avg_sq_ue6m10
                                                                    : x.exp_avg_sq),
        .cols = part.n,
        .global_cols = part.n,
        .name_hash = fnv1a(fmt::format("tensor.{}", part.begin)),
        .t = kStep,
        .scalars = scalars.get(),
    });
  }
  return [slices, scalars, format] { kernels::adamw_step(format, slices, /*seed=*/42); };
}

using TensorList = std::vector<at::Tensor>;

void torch_fused(const TensorList& weights, const TensorList& grads, const TensorList& exp_avgs,
                 const TensorList& exp_avg_sqs) {
  const TensorList steps(weights.size(), at::scalar_tensor(double{kStep}, at::kFloat));
  at::_fused_adamw_(weights, grads, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps, kHyper.lr,
                    kHyper.beta1, kHyper.beta2, kHyper.weight_decay, kHyper.eps, /*amsgrad=*/false,
                    /*maximize=*/false, /*grad_scale=*/{}, /*found_inf=*/{});
}

TensorList narrowed(const at::Tensor& x, const std::vector<Part>& parts) {
  TensorList list;
  for (const Part& part : parts) list.push_back(part.of(x));
  return list;
}

// A row to be measured: what runs, over how many elements, and the bytes an element has to move.
struct Measured {
  Case run;
  double bytes;
  int64_t elements;
};

double bytes_of(const AdamwFormat& f) {
  const double master =
      f.master == MasterMode::kSplit ? 2 * (2 + 2) : 2 + 2 * 4;  // with the weight
  return master + dtype_bytes(f.grad) + 2 * dtype_bytes(f.exp_avg) + 2 * dtype_bytes(f.exp_avg_sq);
}

std::string name_of(const AdamwFormat& f) {
  std::string name = fmt::format("{}/{}/{}", master_name(f.master), dtype_name(f.exp_avg),
                                 dtype_name(f.exp_avg_sq));
  if (f.exp_avg != Dtype::kF32) {
    name += fmt::format("/{}+{}", rounding_name(f.exp_avg_rounding),
                        rounding_name(f.exp_avg_sq_rounding));
  }
  return f.grad == Dtype::kF32 ? name + "/fp32_grad" : name;
}

constexpr AdamwFormat format_of(MasterMode master, Dtype state, Dtype exp_avg_sq, Dtype grad) {
  return {.master = master,
          .grad = grad,
          .exp_avg = state,
          .exp_avg_sq = exp_avg_sq,
          .exp_avg_rounding = Rounding::kNearest,
          .exp_avg_sq_rounding = Rounding::kStochastic};
}

void add_optimizers(std::vector<Measured>& rows, Tensors& x, const std::vector<Part>& parts) {
  int64_t elements = 0;
  for (const Part& part : parts) elements += part.n;
  constexpr auto kF32 = Dtype::kF32, kBF16 = Dtype::kBF16, kUE6M10 = Dtype::kUE6M10;
  constexpr AdamwFormat kFormats[] = {
      format_of(MasterMode::kSplit, kBF16, kBF16, kBF16),
      format_of(MasterMode::kSplit, kBF16, kUE6M10, kBF16),
      format_of(MasterMode::kSplit, kBF16, kBF16, kF32),
      format_of(MasterMode::kFp32, kBF16, kBF16, kBF16),
      format_of(MasterMode::kFp32, kBF16, kUE6M10, kF32),
      format_of(MasterMode::kFp32, kF32, kF32, kF32),
  };
  for (const AdamwFormat& format : kFormats) {
    rows.push_back({{name_of(format), our_step(x, parts, format)}, bytes_of(format), elements});
  }
  const TensorList masters = narrowed(x.master, parts), grads = narrowed(x.grad, parts);
  const TensorList exp_avgs = narrowed(x.exp_avg, parts),
                   exp_avg_sqs = narrowed(x.exp_avg_sq, parts);
  const TensorList weights = narrowed(x.weight, parts), grads_bf16 = narrowed(x.grad_bf16, parts);
  const TensorList exp_avgs_bf16 = narrowed(x.exp_avg_bf16, parts);
  const TensorList exp_avg_sqs_bf16 = narrowed(x.exp_avg_sq_bf16, parts);
  rows.push_back(
      {{std::string(kTorchFusedRow), [=] { torch_fused(masters, grads, exp_avgs, exp_avg_sqs); }},
       28,
       elements});
  rows.push_back({{std::string(kMixedBaselineRow),
                   [=] {
                     torch_fused(masters, grads, exp_avgs, exp_avg_sqs);
                     for (size_t k = 0; k < weights.size(); ++k) weights[k].copy_(masters[k]);
                   }},
                  34,
                  elements});
  // 16-bit state as it is usually added to an existing optimizer: through FP32 temporaries.
  rows.push_back({{std::string(kConvertRow),
                   [=] {
                     for (size_t k = 0; k < weights.size(); ++k) {
                       const TensorList exp_avg{exp_avgs_bf16[k].to(at::kFloat)};
                       const TensorList exp_avg_sq{exp_avg_sqs_bf16[k].to(at::kFloat)};
                       torch_fused({masters[k]}, {grads_bf16[k].to(at::kFloat)}, exp_avg,
                                   exp_avg_sq);
                       exp_avgs_bf16[k].copy_(exp_avg[0]);
                       exp_avg_sqs_bf16[k].copy_(exp_avg_sq[0]);
                       weights[k].copy_(masters[k]);
                     }
                   }},
                  64,
                  elements});
}

// The streams run over the shared FP32 arrays and leave their values as they are.
void add_streams(std::vector<Measured>& rows, Tensors& x) {
  const auto data = [](const at::Tensor& t) { return static_cast<float*>(t.data_ptr()); };
  const std::vector<float*> arrays{data(x.grad), data(x.exp_avg), data(x.exp_avg_sq),
                                   data(x.master)};
  for (int64_t count : {1, 2, 4}) {
    const std::vector<float*> used(arrays.begin(), arrays.begin() + count);
    rows.push_back({{fmt::format("stream_{}", count),
                     [used, n = x.master.numel()] {
                       // Exactly 1, so that the values stay; the compiler does not know it.
                       volatile float one = 1.0f;
                       scale_in_place(used, n, one, ThreadPool::global());
                     }},
                    8.0 * static_cast<double>(count),
                    x.master.numel()});
  }
}

std::vector<Row> measured_rows(const std::vector<Measured>& measured, int repeats) {
  std::vector<Case> cases;
  for (const Measured& m : measured) cases.push_back(m.run);
  const std::vector<Timing> timings = time_interleaved(cases, repeats);
  std::vector<Row> rows;
  for (size_t k = 0; k < measured.size(); ++k) {
    const double bytes = measured[k].bytes * static_cast<double>(measured[k].elements);
    rows.push_back({cases[k].name, timings[k], measured[k].bytes, bytes / timings[k].min_ms / 1e6});
  }
  return rows;
}

}  // namespace

BenchReport run_optimizer_bench(const BenchOptions& options) {
  if (options.elements < 1 << 16 || options.repeats < 1 || options.threads < 1) {
    throw UsageError(
        fmt::format("bench: {} elements, {} repeats, {} threads: expected at least 65536, "
                    "1 and 1",
                    options.elements, options.repeats, options.threads));
  }
  at::set_num_threads(options.threads);
  ThreadPool::set_global_threads(options.threads);
  const at::InferenceMode no_autograd;
  const std::vector<int64_t> sizes = transformer_sizes(options.elements);

  BenchReport report;
  report.one.tensors = 1;
  report.one.elements = options.elements;
  report.list.set = TensorSet::kTransformer;
  report.list.tensors = static_cast<int64_t>(sizes.size());
  std::vector<Part> list;
  for (int64_t size : sizes) {
    list.push_back({report.list.elements, size});
    report.list.elements += size;
  }
  Tensors tensors(std::max(options.elements, report.list.elements));
  const std::vector<Part> one{{0, options.elements}};

  std::vector<Measured> measured;
  add_streams(measured, tensors);
  const size_t num_streams = measured.size();
  add_optimizers(measured, tensors, one);
  const size_t num_one = measured.size();
  add_optimizers(measured, tensors, list);
  const std::vector<Row> rows = measured_rows(measured, options.repeats);
  const auto at = [&](size_t k) { return rows.begin() + static_cast<std::ptrdiff_t>(k); };
  report.streams.assign(at(0), at(num_streams));
  report.one.rows.assign(at(num_streams), at(num_one));
  report.list.rows.assign(at(num_one), rows.end());
  for (const Row& stream : report.streams) {
    report.stream_gbps = std::max(report.stream_gbps, stream.gbps);
  }
  // The first row of each is the split step.
  report.one.extra_bytes = peak_extra_bytes(measured[num_streams].run.run);
  report.list.extra_bytes = peak_extra_bytes(measured[num_one].run.run);
  return report;
}

}  // namespace halfstep::bench
