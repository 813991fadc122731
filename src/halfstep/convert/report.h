// What a conversion did to each class of tensors, for the user and for scripts (--json).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace halfstep::convert {

struct ClassReport {
  // weight, master, exp_avg, exp_avg_sq or max_exp_avg_sq.
  std::string name = {};
  // Formats: "none" where there is none, "bf16+fp32" where parameters differ.
  std::string from = {}, to = {};
  int64_t bytes_before = 0, bytes_after = 0;
  // Largest |new − old| / |old| of the finite values that are not counted below.
  double max_relative_error = 0;
  int64_t lost_ulp = 0;     // ties on the way to a split master
  int64_t became_zero = 0;  // were not 0
  int64_t saturated = 0;    // beyond the format's largest value: that one, or Inf in bf16
};

struct Report {
  std::string source = {}, target = {};
  int64_t iteration = 0;
  int64_t parameters = 0;  // elements
  std::vector<ClassReport> classes = {};
  std::vector<std::string> notes = {};  // lines for the log
};

nlohmann::ordered_json to_json(const Report& report);
// A line per class and note.
std::string to_text(const Report& report);

}  // namespace halfstep::convert
