// In which formats a target checkpoint stores what its source has, and the settings with which
// training goes on from it. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "halfstep/core/dtype.h"
#include "halfstep/layout/layout.h"

namespace halfstep::convert {

// What was asked for; empty: as it is.
struct Formats {
  std::optional<Dtype> weight = {}, exp_avg = {}, exp_avg_sq = {};
  std::optional<MasterMode> master = {};
};

// `stored` with what was asked for. BF16 weights made of FP32 ones get an FP32 master unless
// another one is asked for, so nothing is lost; FP32 weights are their own, and their gradients
// FP32. Throws UsageError for formats that contradict each other.
layout::StorageFormat target_storage(layout::StorageFormat stored, const Formats& formats);

// The settings of a run (TrainState::hyperparameters) that name formats, brought from those of
// `before` to those of `after`, so that `train --load` resumes with what is there.
nlohmann::json settings_for(nlohmann::json settings, const layout::StorageFormat& before,
                            const layout::StorageFormat& after);

}  // namespace halfstep::convert
