// A Hugging Face config.json: an accepted model is valid, and is the same when it is written again.
#include "halfstep/arch/model_config.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  const std::string_view text = fuzz::text_of(data, size);
  if (const auto model = fuzz::accepted([&] { return arch::parse_hf_config(text, "c.json"); })) {
    model->validate();
    check(arch::parse_hf_config(arch::to_hf_config(*model), "again") == *model,
          "a model round-trips");
  }
  return 0;
}
