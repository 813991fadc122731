// For targets whose input is one JSON text.
#include "json_mutation.h"

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace halfstep::fuzz;
  Random random(seed);
  const std::string text(reinterpret_cast<const char*>(data), size);
  return give_back(mutate_json_text(text, max_size, random), data, max_size);
}
