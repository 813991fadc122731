// What fine-tuning learns from, one at a time: tokens of which some are to be predicted.
#pragma once

#include <cstdint>
#include <vector>

namespace halfstep::data {

struct Example {
  std::vector<int32_t> tokens;
  // By token: 1 if the model is to predict it from those before it, so that it has a loss.
  std::vector<uint8_t> learned;
};

// What becomes of an example that has no place in a row.
enum class LongExamples : uint8_t { kRefuse, kTruncate, kDrop };

}  // namespace halfstep::data
