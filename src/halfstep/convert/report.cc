#include "halfstep/convert/report.h"

#include <fmt/format.h>

#include "halfstep/io/units.h"

namespace halfstep::convert {

nlohmann::ordered_json to_json(const Report& report) {
  nlohmann::ordered_json classes = nlohmann::ordered_json::array();
  for (const ClassReport& c : report.classes) {
    classes.push_back({{"class", c.name},
                       {"from", c.from},
                       {"to", c.to},
                       {"bytes_before", c.bytes_before},
                       {"bytes_after", c.bytes_after},
                       {"max_relative_error", c.max_relative_error},
                       {"lost_ulp", c.lost_ulp},
                       {"became_zero", c.became_zero},
                       {"saturated", c.saturated}});
  }
  return {{"source", report.source},       {"target", report.target},
          {"iteration", report.iteration}, {"parameters", report.parameters},
          {"rounding", "nearest"},         {"classes", std::move(classes)},
          {"notes", report.notes}};
}

std::string to_text(const Report& report) {
  std::string text = fmt::format("{} -> {}: iteration {}, {} parameters, rounded to nearest\n",
                                 report.source, report.target, report.iteration, report.parameters);
  for (const ClassReport& c : report.classes) {
    text += fmt::format("  {:<14} {:>9} -> {:<9} {:>10} -> {:<10}", c.name, c.from, c.to,
                        io::format_bytes(c.bytes_before), io::format_bytes(c.bytes_after));
    if (c.max_relative_error > 0) text += fmt::format(" off by {:.3g}", c.max_relative_error);
    if (c.lost_ulp > 0) text += fmt::format(", {} lost an ulp", c.lost_ulp);
    if (c.became_zero > 0) text += fmt::format(", {} became 0", c.became_zero);
    if (c.saturated > 0) text += fmt::format(", {} saturated", c.saturated);
    const bool exact = c.max_relative_error == 0 && c.became_zero == 0 && c.saturated == 0;
    text += exact && c.to != "none" ? " exact\n" : "\n";
  }
  for (const std::string& note : report.notes) text += "  " + note + "\n";
  return text;
}

}  // namespace halfstep::convert
