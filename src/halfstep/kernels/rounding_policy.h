// Which rounding each state gets (docs/numerics.md §4, §7). Pure functions, called once at start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "halfstep/core/dtype.h"

namespace halfstep::kernels {

struct RoundingChoice {
  Rounding rounding = Rounding::kNearest;
  std::string
      reason;  // for the start-up report: "1 - beta = 0.001 < 0.04: nearest would be biased"
};

// The rounding of a state with decay `beta` in `dtype`. `asked` empty is auto. Throws UsageError if
// nearest was asked for by name where it stalls, unless allow_stalling. `state` names the state in
// messages ("exp_avg_sq").
RoundingChoice choose_state_rounding(Dtype dtype, double beta, std::optional<Rounding> asked,
                                     bool allow_stalling, const char* state);

// The rounding of BF16 gradient accumulation over `contributions` micro-batches. The reason says
// what error to expect.
RoundingChoice choose_accumulation_rounding(Dtype dtype, int64_t contributions,
                                            std::optional<Rounding> asked);

// Expected rms error, relative to the rms of the sum, of independent gradients of mean 0 added up
// in `dtype` (fp32: 0, at this precision).
double expected_accumulation_error(Dtype dtype, int64_t contributions, Rounding rounding);

}  // namespace halfstep::kernels
