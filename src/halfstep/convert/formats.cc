#include "halfstep/convert/formats.h"

#include <string>

#include "halfstep/core/error.h"

namespace halfstep::convert {

layout::StorageFormat target_storage(layout::StorageFormat stored, const Formats& formats) {
  const bool was_fp32 = stored.weight == Dtype::kF32;
  stored.weight = formats.weight.value_or(stored.weight);
  stored.exp_avg = formats.exp_avg.value_or(stored.exp_avg);
  stored.exp_avg_sq = formats.exp_avg_sq.value_or(stored.exp_avg_sq);
  if (stored.weight == Dtype::kF32) {
    if (formats.master.value_or(MasterMode::kNone) != MasterMode::kNone) {
      throw UsageError("FP32 weights are their own master",
                       "drop --master and --reuse-fp32-param, or ask for BF16 weights (--bf16)");
    }
    stored.master = MasterMode::kNone;
    stored.gradient = Dtype::kF32;
  } else {
    stored.master = formats.master.value_or(was_fp32 ? MasterMode::kFp32 : stored.master);
  }
  stored.validate();
  return stored;
}

nlohmann::json settings_for(nlohmann::json settings, const layout::StorageFormat& before,
                            const layout::StorageFormat& after) {
  const bool bf16 = after.weight == Dtype::kBF16;
  settings["bf16"] = bf16;
  settings["exp-avg-dtype"] = std::string(dtype_name(after.exp_avg));
  settings["exp-avg-sq-dtype"] = std::string(dtype_name(after.exp_avg_sq));
  for (const char* key : {"o2-optimizer", "master", "reuse-fp32-param"}) settings.erase(key);
  if (bf16) {
    settings["master"] = std::string(master_name(after.master));
  } else {
    for (const char* key : {"o2-gradient", "grad-accumulation-rounding", "fp32-params"}) {
      settings.erase(key);
    }
  }
  // What was said of a rounding was said of the formats then.
  if (before.exp_avg != after.exp_avg || before.exp_avg_sq != after.exp_avg_sq) {
    settings.erase("allow-stalling-rounding");
    settings.erase("state-rounding");
  }
  return settings;
}

}  // namespace halfstep::convert
