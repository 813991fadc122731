// The other end of the tokenizer's pipe gone mad: a child that answers each of our messages with
// bytes of the input (three parts: its greeting, its answer to encode, its answer to decode). All
// that may come of it is an InputError or ids and texts as asked for, before the child's time is
// up.
#include <cstdlib>

#include "halfstep/core/test_folder.h"
#include "halfstep/data/pipe_tokenizer.h"
#include "target.h"

namespace halfstep::fuzz {
namespace {

void talk(data::PipeTokenizer& tokenizer) {
  check(tokenizer.vocab_size() > 0, "a vocabulary is not empty");
  check(tokenizer.eod() >= -1 && tokenizer.eod() < tokenizer.vocab_size(), "the end is in it");
  const std::string_view texts[] = {"a", "", "bc"};
  if (const auto ids = accepted([&] { return tokenizer.encode_batch(texts); })) {
    check(ids->size() == 3, "ids of each text");
    for (const auto& text : *ids) {
      for (const int32_t id : text) check(id >= 0 && id < tokenizer.vocab_size(), "an id");
    }
  }
  const std::vector<std::vector<int32_t>> ids{{0}, {}};
  if (const auto all = accepted([&] { return tokenizer.decode_batch(ids); })) {
    check(all->size() == 2, "a text of each list");
  }
}

}  // namespace
}  // namespace halfstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  static const TestFolder folder;
  const std::string input = folder.write("answers", fuzz::text_of(data, size));
  const char* parrot = std::getenv("HALFSTEP_PARROT");
  check(parrot != nullptr, "HALFSTEP_PARROT names the child");
  fuzz::accepted([&] {
    data::PipeTokenizer tokenizer("FOLDER", {parrot, input}, data::Subprocess::Duration(10'000));
    fuzz::talk(tokenizer);
    return true;
  });
  return 0;
}
