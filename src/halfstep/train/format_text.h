// Numbers as people read them in the log.
#pragma once

#include <cstdint>
#include <string>

namespace halfstep::train {

std::string format_count(double value);       // "18.2k", "1.31M", "640"
std::string format_duration(double seconds);  // "12:41", "1:02:03"
std::string format_rate(double value);  // three significant digits without zeros: "0.003", "3e-05"

}  // namespace halfstep::train
