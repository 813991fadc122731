#include "halfstep/data/split.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "halfstep/core/error.h"

namespace halfstep::data {
namespace {

[[noreturn]] void refuse(std::string_view split) {
  throw UsageError(
      fmt::format("--split '{}', expected one to three non-negative weights with a positive sum",
                  split),
      "for example --split 969,30,1 or --split 90,10");
}

std::array<double, 3> parse_weights(std::string_view split) {
  std::array<double, 3> weights{};
  const char* at = split.data();
  const char* const end = at + split.size();
  for (size_t i = 0;; ++i) {
    if (i == weights.size()) refuse(split);
    const auto [next, error] = std::from_chars(at, end, weights[i]);
    if (error != std::errc() || !(weights[i] >= 0) || !std::isfinite(weights[i])) refuse(split);
    if (next == end) return weights;
    if (*next != ',') refuse(split);
    at = next + 1;
  }
}

}  // namespace

std::array<SampleRange, 3> split_windows(int64_t num_windows, std::string_view split) {
  const std::array<double, 3> weights = parse_weights(split);
  const double sum = weights[0] + weights[1] + weights[2];
  if (!(sum > 0) || !std::isfinite(sum)) refuse(split);
  // A double holds every count below 2^53 exactly; the last boundary is taken as it is.
  const auto boundary = [&](double weight) {
    return std::llround(static_cast<double>(num_windows) * (weight / sum));
  };
  const int64_t train = weights[1] + weights[2] > 0 ? boundary(weights[0]) : num_windows;
  const int64_t valid = weights[2] > 0 ? boundary(weights[0] + weights[1]) : num_windows;
  return {SampleRange{0, train}, {train, valid - train}, {valid, num_windows - valid}};
}

}  // namespace halfstep::data
