#include "halfstep/train/flag_values.h"

#include <fmt/core.h>

#include "halfstep/core/error.h"
#include "halfstep/io/units.h"

namespace halfstep::train {

int64_t integer_value(const std::string& flag, const std::string& text, int64_t min, int64_t max) {
  const int64_t value = io::parse_bytes(text, "--" + flag);
  if (value < min) {
    throw UsageError(fmt::format("--{}: got {}, expected {} or more", flag, text, min));
  }
  if (value > max) {
    throw UsageError(fmt::format("--{}: got {}, expected {} or less", flag, text, max));
  }
  return value;
}

double number_value(const std::string& flag, const std::string& text, double min, double max,
                    bool open) {
  const double value = io::parse_number(text, "--" + flag);
  if (open ? !(value > min && value < max) : !(value >= min && value <= max)) {
    const std::string range = max > 1e300
                                  ? fmt::format("{:g} or more", min)
                                  : fmt::format("a number {} {:g} and {:g}",
                                                open ? "strictly between" : "between", min, max);
    throw UsageError(fmt::format("--{}: got {}, expected {}", flag, text, range));
  }
  return value;
}

void throw_no_choice(const std::string& flag, const std::string& text, const std::string& names) {
  throw UsageError(fmt::format("--{}: got '{}', expected one of {}", flag, text, names));
}

}  // namespace halfstep::train
