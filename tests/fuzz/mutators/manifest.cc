// For manifests: edited as JSON and sealed again, or else the checksum would end every case early.
#include "../seal.h"
#include "json_mutation.h"

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace halfstep::fuzz;
  Random random(seed);
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::string mutated = mutate_json_text(text, max_size, random);
  const auto document = nlohmann::json::parse(mutated, nullptr, false);
  if (document.is_object() && random() % 16 != 0) mutated = sealed(document);
  return give_back(mutated, data, max_size);
}
