// Which rounding each state gets (docs/numerics.md §4). Pure functions, called once at start.
#pragma once

#include <optional>
#include <string>

#include "halfstep/core/dtype.h"

namespace halfstep::kernels {

struct RoundingChoice {
  Rounding rounding = Rounding::kNearest;
  std::string reason;  // for the start-up report, e.g. "1-beta2 = .001 < .04: nearest would stall"
};

// The rounding of a state with decay `beta` in `dtype`. `asked` empty is auto. Throws UsageError if
// nearest was asked for by name where it stalls, unless allow_stalling. `flag` names the state in
// messages ("exp_avg_sq").
RoundingChoice choose_state_rounding(Dtype dtype, double beta, std::optional<Rounding> asked,
                                     bool allow_stalling, const char* state);

// The rounding of BF16 gradient accumulation over `contributions` micro-batches, and its expected
// rms error in percent (docs/numerics.md §7).
RoundingChoice choose_accumulation_rounding(Dtype dtype, int64_t contributions,
                                            std::optional<Rounding> asked);

}  // namespace halfstep::kernels
