// How long something took: every time that is reported or compared is taken by this clock.
#pragma once

#include <chrono>

namespace halfstep {

inline double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace halfstep
