#include "halfstep/checkpoint/train_state_json.h"

#include <limits>
#include <string>
#include <string_view>

namespace halfstep::checkpoint {
namespace {

using io::JsonObject;
using nlohmann::ordered_json;

ordered_json storage_to_json(const layout::StorageFormat& storage) {
  return {
      {"weight", dtype_name(storage.weight)},         {"gradient", dtype_name(storage.gradient)},
      {"master", master_name(storage.master)},        {"exp_avg", dtype_name(storage.exp_avg)},
      {"exp_avg_sq", dtype_name(storage.exp_avg_sq)}, {"amsgrad", storage.amsgrad}};
}

Dtype dtype_at(const JsonObject& object, std::string_view key) {
  const auto dtype = parse_dtype(object.string(key));
  if (!dtype) object.fail(key, "fp32, bf16 or ue6m10");
  return *dtype;
}

MasterMode master_at(const JsonObject& object, std::string_view key) {
  const std::string name = object.string(key);
  for (const MasterMode mode : {MasterMode::kFp32, MasterMode::kSplit, MasterMode::kNone}) {
    if (master_name(mode) == name) return mode;
  }
  object.fail(key, "fp32, split or none");
}

layout::StorageFormat storage_from_json(const JsonObject& object) {
  return {.weight = dtype_at(object, "weight"),
          .gradient = dtype_at(object, "gradient"),
          .master = master_at(object, "master"),
          .exp_avg = dtype_at(object, "exp_avg"),
          .exp_avg_sq = dtype_at(object, "exp_avg_sq"),
          .amsgrad = object.boolean("amsgrad")};
}

int64_t count_at(const JsonObject& object, std::string_view key) {
  const int64_t count = object.integer(key);
  if (count < 0) object.fail(key, "at least 0");
  return count;
}

}  // namespace

ordered_json train_state_to_json(const TrainState& state) {
  return {
      {"iteration", state.iteration},
      {"t", {{"default", state.t}, {"exceptions", state.t_exceptions}}},
      {"consumed_samples", state.consumed_samples},
      {"consumed_tokens", state.consumed_tokens},
      {"skipped_steps",
       {{"total", state.skipped_steps}, {"consecutive", state.consecutive_skipped_steps}}},
      {"seed", state.seed},
      {"data_fingerprint", state.data_fingerprint},
      {"torch_threads", state.torch_threads},
      {"storage", storage_to_json(state.storage)},
      {"fp32_params", state.fp32_params},
      {"hyperparameters", state.hyperparameters},
      {"model_config", state.model_config},
      {"data", state.data},
  };
}

TrainState train_state_from_json(const JsonObject& object) {
  TrainState state;
  state.iteration = count_at(object, "iteration");
  const JsonObject t = object.object("t");
  state.t = count_at(t, "default");
  const JsonObject exceptions = t.object("exceptions");
  for (const auto& item : exceptions.value().items()) {
    state.t_exceptions[item.key()] = count_at(exceptions, item.key());
  }
  state.consumed_samples = count_at(object, "consumed_samples");
  state.consumed_tokens = count_at(object, "consumed_tokens");
  const JsonObject skipped = object.object("skipped_steps");
  state.skipped_steps = count_at(skipped, "total");
  state.consecutive_skipped_steps = count_at(skipped, "consecutive");
  state.seed = object.unsigned_integer("seed");
  state.data_fingerprint = object.unsigned_integer("data_fingerprint");
  const int64_t threads = count_at(object, "torch_threads");
  if (threads > std::numeric_limits<int>::max()) object.fail("torch_threads", "less than 2^31");
  state.torch_threads = static_cast<int>(threads);
  state.storage = storage_from_json(object.object("storage"));
  state.fp32_params = object.strings("fp32_params");
  state.hyperparameters = object.object("hyperparameters").value();
  state.model_config = object.object("model_config").value();
  state.data = object.object("data").value();
  return state;
}

}  // namespace halfstep::checkpoint
