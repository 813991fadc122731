#include "halfstep/model/model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "halfstep/core/error.h"
#include "halfstep/model/kv_cache.h"
#include "halfstep/model/layer.h"
#include "halfstep/model/ops/embedding.h"
#include "halfstep/model/ops/loss_head.h"
#include "halfstep/model/ops/rms_norm.h"

namespace halfstep::model {
namespace {

// Hands out the parameters in the order of arch::parameter_list.
class Cursor {
 public:
  explicit Cursor(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {}
  const at::Tensor& next() { return parameters_.at(static_cast<size_t>(index_++)); }
  LinearWeights next_linear(int64_t count) {
    std::vector<at::Tensor> weights;
    const int64_t first = index_;
    for (int64_t i = 0; i < count; ++i) weights.push_back(next());
    return LinearWeights(std::move(weights), first);
  }
  int64_t index() const { return index_; }

 private:
  const std::vector<at::Tensor>& parameters_;
  int64_t index_ = 0;
};

LayerWeights next_layer(Cursor& cursor, const arch::ModelConfig& config) {
  const at::Tensor input_norm = cursor.next();
  LinearWeights qkv = cursor.next_linear(3);
  std::vector<at::Tensor> qkv_bias;
  for (int i = 0; config.qkv_bias && i < 3; ++i) qkv_bias.push_back(cursor.next());
  const at::Tensor q_norm = config.qk_norm ? cursor.next() : at::Tensor();
  const at::Tensor k_norm = config.qk_norm ? cursor.next() : at::Tensor();
  LinearWeights output = cursor.next_linear(1);
  const at::Tensor post_attention_norm = cursor.next();
  LinearWeights gate_up = cursor.next_linear(2);
  LinearWeights down = cursor.next_linear(1);
  return {.input_norm = input_norm,
          .post_attention_norm = post_attention_norm,
          .qkv_bias = std::move(qkv_bias),
          .q_norm = q_norm,
          .k_norm = k_norm,
          .qkv = std::move(qkv),
          .output = std::move(output),
          .gate_up = std::move(gate_up),
          .down = std::move(down)};
}

void check_parameters(const std::vector<arch::Parameter>& expected,
                      const std::vector<at::Tensor>& got) {
  check(expected.size() == got.size(), "model: one tensor per parameter is needed");
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor& tensor = got[i];
    const bool fits = tensor.defined() && tensor.sizes() == at::IntArrayRef(expected[i].shape) &&
                      tensor.is_contiguous() &&
                      (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16);
    if (!fits) {
      throw InternalError(
          fmt::format("model: the tensor of {} has another shape or dtype", expected[i].name));
    }
  }
}

// Values of a [T] int64 tensor must lie in [0, limit), or be −100 if that is allowed.
void check_range(const at::Tensor& ids, int64_t limit, bool allow_ignored, const char* what) {
  const int64_t* p = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    if (p[i] >= 0 ? p[i] < limit : allow_ignored && p[i] == -100) continue;
    throw InputError(
        fmt::format("{} {} at position {}: expected 0 to {}", what, p[i], i, limit - 1),
        "the data were tokenized for another model, or --padded-vocab-size is too small");
  }
}

at::Tensor flat(const at::Tensor& ids) { return ids.reshape({-1}).contiguous(); }

}  // namespace

struct Model::Impl {
  Impl(const arch::ModelConfig& model_config, std::vector<at::Tensor> tensors,
       const ModelOptions& model_options)
      : config(model_config), options(model_options) {
    check_parameters(arch::parameter_list(config), tensors);
    num_parameters = std::ssize(tensors);
    Cursor cursor(tensors);
    embedding_table = cursor.next();
    for (int64_t i = 0; i < config.num_layers; ++i) {
      layer_begins.push_back(cursor.index());
      layers.push_back(next_layer(cursor, config));
    }
    layer_begins.push_back(cursor.index());
    final_norm = cursor.next();
    head.parameter = config.tie_embeddings ? 0 : cursor.index();
    head.weight = config.tie_embeddings ? embedding_table : cursor.next();
    head.sink = options.weight_gradients;
    head.chunk_tokens = options.loss_chunk_tokens;
    inverse_frequencies = rotary_inverse_frequencies(config);
  }

  // Rows for positions 0 … largest; grown in powers of two and kept.
  const RotaryTable& table_for(const at::Tensor& positions) {
    const int64_t needed = positions.max().item<int64_t>() + 1;
    int64_t rows = rotary.cos.defined() ? rotary.cos.size(0) : 0;
    if (needed > rows) {
      rows = rows == 0 ? 256 : rows;
      while (rows < needed) rows *= 2;
      rotary = rotary_table(inverse_frequencies, rows);
    }
    return rotary;
  }

  // The output of the last layer, normalised: [T, hidden].
  at::Tensor hidden_states(const at::Tensor& tokens, const LayerInputs& inputs, KvCache* cache) {
    need(0, 1);
    at::Tensor hidden = embedding(embedding_table, tokens, options.compute);
    for (size_t i = 0; i < layers.size(); ++i) {
      need(layer_begins[i], layer_begins[i + 1]);
      hidden =
          layer_forward(hidden, layers[i], inputs, cache != nullptr ? &cache->layers[i] : nullptr);
    }
    need(layer_begins.back(), num_parameters);  // the final norm, and an output matrix
    return rms_norm(hidden, final_norm, config.norm_eps);
  }

  void need(int64_t begin, int64_t end) const {
    if (options.before_weights) options.before_weights(begin, end);
  }

  at::Tensor hidden_states(const Batch& batch) {
    const at::Tensor tokens = flat(batch.tokens), positions = flat(batch.positions);
    check_range(tokens, config.vocab_size, /*allow_ignored=*/false, "token");
    const int64_t rows = batch.tokens.size(0), length = batch.tokens.size(1);
    LayerInputs inputs{.config = config,
                       .positions = positions,
                       .rotary = table_for(positions),
                       .segments = {{rows, length}},
                       .sink = options.weight_gradients};
    if (!batch.segment_starts.empty()) {
      check(batch.segment_starts.front() == 0 && batch.segment_starts.back() == rows * length,
            "model: segments do not cover the batch");
      inputs.segments = segment_runs(batch.segment_starts);
    }
    return hidden_states(tokens, inputs, nullptr);
  }

  at::Tensor project(const at::Tensor& hidden) const {
    return at::mm(hidden, head.weight.to(options.compute).t()).to(at::kFloat);
  }

  arch::ModelConfig config;
  ModelOptions options;
  at::Tensor embedding_table, final_norm, inverse_frequencies;
  std::vector<LayerWeights> layers;
  int64_t num_parameters = 0;
  std::vector<int64_t> layer_begins;  // first parameter of each, and of what follows the last
  LossHead head;
  RotaryTable rotary;
};

Model::Model(const arch::ModelConfig& config, std::vector<at::Tensor> parameters,
             ModelOptions options)
    : impl_(std::make_unique<Impl>(config, std::move(parameters), options)) {}
Model::~Model() = default;

at::Tensor Model::loss_sum(const Batch& batch) {
  const at::Tensor targets = flat(batch.targets);
  check_range(targets, impl_->config.vocab_size, /*allow_ignored=*/true, "target");
  return cross_entropy_sum(impl_->hidden_states(batch), impl_->head, targets);
}

at::Tensor Model::logits(const Batch& batch) {
  const at::Tensor hidden = impl_->hidden_states(batch);
  return impl_->project(hidden).reshape(
      {batch.tokens.size(0), batch.tokens.size(1), impl_->config.vocab_size});
}

at::Tensor Model::next_logits(const at::Tensor& tokens, KvCache& cache) {
  c10::NoGradGuard no_grad;
  const int64_t count = tokens.size(0), first = cache.num_tokens;
  check(first + count <= cache.capacity, "model: the cache is full");
  check_range(tokens, impl_->config.vocab_size, /*allow_ignored=*/false, "token");
  const at::Tensor positions = at::arange(first, first + count, at::kLong);
  const LayerInputs inputs{.config = impl_->config,
                           .positions = positions,
                           .rotary = impl_->table_for(positions),
                           .segments = {},
                           .cached_tokens = first};
  const at::Tensor hidden = impl_->hidden_states(tokens, inputs, &cache);
  cache.num_tokens += count;
  return impl_->project(hidden.narrow(0, count - 1, 1)).reshape({-1});
}

const arch::ModelConfig& Model::config() const { return impl_->config; }
const ModelOptions& Model::options() const { return impl_->options; }

}  // namespace halfstep::model
