#include "halfstep/train/loaded_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "halfstep/checkpoint/reader.h"
#include "halfstep/core/error.h"
#include "halfstep/core/thread_pool.h"
#include "halfstep/hf/folder_reader.h"
#include "halfstep/io/json.h"
#include "halfstep/train/checkpoints.h"
#include "halfstep/train/matmul_precision.h"

namespace halfstep::train {
namespace {

at::Tensor empty_weight(const arch::Parameter& parameter, Dtype dtype) {
  return at::empty(parameter.shape, dtype == Dtype::kF32 ? at::kFloat : at::kBFloat16);
}

std::vector<at::Tensor> read_checkpoint(const std::string& folder, LoadedModel& loaded) {
  const checkpoint::CheckpointReader reader(folder);
  const checkpoint::TrainState& state = reader.state();
  loaded.config = model_config_of(reader);
  const io::JsonObject data = state_object(reader, state.data, "data");
  if (data.has("tokenizer")) loaded.tokenizer = data.string("tokenizer");
  if (data.has("seq_length")) loaded.seq_length = data.integer("seq_length");
  if (loaded.seq_length < 0) data.fail("seq_length", "a length of 1 or more");
  std::vector<at::Tensor> weights;
  std::vector<checkpoint::MutableSlice> slices;
  for (const arch::Parameter& parameter : arch::parameter_list(loaded.config)) {
    const auto& fp32 = state.fp32_params;
    const bool keeps_fp32 = std::find(fp32.begin(), fp32.end(), parameter.name) != fp32.end();
    const Dtype dtype = keeps_fp32 ? Dtype::kF32 : state.storage.weight;
    weights.push_back(empty_weight(parameter, dtype));
    checkpoint::MutableSlice slice;
    static_cast<checkpoint::Slice&>(slice) = checkpoint::whole_slice(
        checkpoint::TensorKind::kWeight, parameter.name, parameter.shape, dtype);
    slice.data = weights.back().data_ptr();
    slices.push_back(std::move(slice));
  }
  reader.load(slices, {.allow_unrequested = true});
  return weights;
}

std::vector<at::Tensor> read_hf_folder(const std::string& folder, LoadedModel& loaded) {
  loaded.config = arch::load_hf_config(folder + "/config.json");
  loaded.tokenizer = folder;
  const hf::FolderReader file(folder, loaded.config);
  std::vector<at::Tensor> weights;
  std::vector<hf::WeightSlot> slots;
  for (const arch::Parameter& parameter : arch::parameter_list(loaded.config)) {
    const Dtype dtype = file.wider_than_bf16(std::ssize(slots)) ? Dtype::kF32 : Dtype::kBF16;
    weights.push_back(empty_weight(parameter, dtype));
    slots.push_back({weights.back().data_ptr(), dtype});
  }
  file.load(slots);
  return weights;
}

}  // namespace

void set_threads(int64_t num_threads) {
  const int threads = num_threads > 0 ? static_cast<int>(num_threads) : available_cpus();
  at::set_num_threads(threads);
  ThreadPool::set_global_threads(threads);
}

LoadedModel load_model(const ModelSource& source) {
  if (source.load.empty() == source.load_hf.empty()) {
    throw UsageError("which model? Got --load and --load-hf both, or none",
                     "give --load DIR (a checkpoint) or --load-hf DIR (a Hugging Face folder)");
  }
  set_threads(source.num_threads);
  LoadedModel loaded;
  std::vector<at::Tensor> weights = source.load_hf.empty() ? read_checkpoint(source.load, loaded)
                                                           : read_hf_folder(source.load_hf, loaded);
  // The matrices decide: norms may be FP32 beside them.
  const bool bf16 = std::none_of(weights.begin(), weights.end(), [](const at::Tensor& weight) {
    return weight.dim() > 1 && weight.scalar_type() == at::kFloat;
  });
  const ComputeChoice compute = choose_compute(source.matmul_precision, bf16);
  loaded.model = std::make_unique<model::Model>(
      loaded.config, std::move(weights),
      model::ModelOptions{.compute = compute.dtype, .weight_gradients = nullptr});
  return loaded;
}

}  // namespace halfstep::train
