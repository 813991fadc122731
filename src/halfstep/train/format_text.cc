#include "halfstep/train/format_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace halfstep::train {

std::string format_count(double value) {
  const char* units[] = {"", "k", "M", "G", "T"};
  int unit = 0;
  while (std::abs(value) >= 999.5 && unit < 4) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g}{}", value, units[unit]);
}

std::string format_duration(double seconds) {
  const int64_t s = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e12)));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string format_rate(double value) { return fmt::format("{:.3g}", value); }

}  // namespace halfstep::train
