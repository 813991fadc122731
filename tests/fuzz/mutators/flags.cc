// For flags: edits the --config file as JSON, or the command line as bytes.
#include "../targets/target.h"
#include "json_mutation.h"

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace halfstep::fuzz;
  Random random(seed);
  auto parts = split_parts(text_of(data, size), 2);
  std::string& part = parts[random() % 2];
  const size_t room = part.size() + (max_size > size ? max_size - size : 0);
  part = &part == &parts[0] && !part.empty() ? mutate_json_text(part, room, random)
                                             : mutate_bytes(part, room);
  return give_back(join_parts(parts), data, max_size);
}
