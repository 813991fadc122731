// For Hugging Face folders: edits one of the four files, each as what it is.
#include "../targets/target.h"
#include "safetensors.h"

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace halfstep::fuzz;
  Random random(seed);
  auto parts = split_parts(text_of(data, size), 4);
  std::string& part = parts[random() % 4];
  const size_t room = part.size() + (max_size > size ? max_size - size : 0);
  part = &part < &parts[2] ? mutate_json_text(part, room, random)
                           : mutate_safetensors(part, room, random);
  return give_back(join_parts(parts), data, max_size);
}
