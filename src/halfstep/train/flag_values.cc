#include "halfstep/train/flag_values.h"

#include <fmt/core.h>

#include "halfstep/core/error.h"
#include "halfstep/io/units.h"

namespace halfstep::train {

int64_t integer_value(const std::string& flag, const std::string& text, int64_t min, int64_t max) {
  int64_t value = 0;
  try {
    value = io::parse_bytes(text, "--" + flag);
  } catch (const UsageError&) {  // it speaks of sizes, and most of these are counts
    throw UsageError(
        fmt::format("--{}: got '{}', expected a whole number from {} to {}", flag, text, min, max),
        "also with a unit or an exponent: 4KiB, 2e6");
  }
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

std::string text_value(const std::string& flag, const std::string& text,
                       const std::string& expected) {
  if (text.empty()) {
    throw UsageError(fmt::format("--{}: got '', expected {}", flag, expected),
                     "leave the flag out if it is not meant; is a variable of your script unset?");
  }
  return text;
}

void throw_no_choice(const std::string& flag, const std::string& text, const std::string& names) {
  throw UsageError(fmt::format("--{}: got '{}', expected one of {}", flag, text, names));
}

}  // namespace halfstep::train
