#include "halfstep/io/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "halfstep/core/error.h"

namespace halfstep::io {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 11> kUnits{{{"KiB", 1024.0},
                                       {"MiB", 1048576.0},
                                       {"GiB", 1073741824.0},
                                       {"TiB", 1099511627776.0},
                                       {"kB", 1e3},
                                       {"KB", 1e3},
                                       {"MB", 1e6},
                                       {"GB", 1e9},
                                       {"TB", 1e12},
                                       {"B", 1.0},
                                       {"", 1.0}}};

// The first unit that the text ends in; the list has longer names before their endings.
const Unit& unit_of(std::string_view text) {
  for (const Unit& unit : kUnits) {
    if (text.ends_with(unit.name)) return unit;
  }
  return kUnits.back();
}

std::optional<double> to_double(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

bool has_byte_unit(std::string_view text) { return !unit_of(text).name.empty(); }

int64_t parse_bytes(std::string_view text, std::string_view what) {
  const Unit& unit = unit_of(text);
  std::string_view digits = text.substr(0, text.size() - unit.name.size());
  while (digits.ends_with(' ')) digits.remove_suffix(1);
  // Plain integers are read as such: a double holds only 53 bits.
  int64_t whole = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), whole);
  if (unit.bytes == 1.0 && error == std::errc() && end == digits.data() + digits.size() &&
      whole >= 0) {
    return whole;
  }
  const auto value = to_double(digits);
  const double bytes = value.value_or(-1) * unit.bytes;
  if (bytes < 0 || bytes >= 0x1p63 || bytes != std::floor(bytes)) {
    throw UsageError(
        fmt::format("{}: got '{}', expected a size such as 4096, 4KiB or 1.5GiB", what, text),
        "units: B, KiB, MiB, GiB, TiB (1024) and kB, MB, GB, TB (1000)");
  }
  return static_cast<int64_t>(bytes);
}

double parse_number(std::string_view text, std::string_view what) {
  const auto value = to_double(text);
  if (!value) {
    throw UsageError(
        fmt::format("{}: got '{}', expected a number such as 0.1 or 1e-4", what, text));
  }
  return *value;
}

std::string format_bytes(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array names{"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 999.5 would be printed as 1000: three digits are left for 0.976 of the next unit.
  while (value >= 999.5 && unit + 1 < names.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, names[unit]);
}

}  // namespace halfstep::io
