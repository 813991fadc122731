// For safetensors files: edits the JSON of the header and makes its length right again, and, half
// of the time, the length of the data too.
#include "safetensors.h"

#include "json_mutation.h"

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace halfstep::fuzz;
  Random random(seed);
  const std::string file(reinterpret_cast<const char*>(data), size);
  return give_back(mutate_safetensors(file, max_size, random), data, max_size);
}
