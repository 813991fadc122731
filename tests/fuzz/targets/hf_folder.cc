// A Hugging Face folder (parts: config.json, model.safetensors.index.json or nothing, two
// safetensors files): a folder that is accepted has every parameter of its config, and each loads.
#include <filesystem>

#include "halfstep/arch/model_config.h"
#include "halfstep/core/test_folder.h"
#include "halfstep/hf/folder_reader.h"
#include "target.h"

namespace halfstep::fuzz {
namespace {

// Larger models are refused for want of data before they are listed here.
constexpr int64_t kMaxLayers = 8;

void load_all(const hf::FolderReader& weights, const arch::ModelConfig& config) {
  const std::vector<arch::Parameter> parameters = arch::parameter_list(config);
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
      std::vector<std::byte> memory(
          static_cast<size_t>(parameters[i].numel() * dtype_bytes(dtype)));
      weights.load(static_cast<int64_t>(i), {memory.data(), dtype});
    }
  }
}

}  // namespace
}  // namespace halfstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  static const TestFolder folder;
  const auto parts = fuzz::split_parts(fuzz::text_of(data, size), 4);
  const std::string index = "model.safetensors.index.json";
  if (parts[1].empty()) {
    std::filesystem::remove(folder.path() / index);
  } else {
    folder.write(index, parts[1]);
  }
  folder.write(parts[1].empty() ? "model.safetensors" : "a.safetensors", parts[2]);
  folder.write("b.safetensors", parts[3]);
  const auto config =
      fuzz::accepted([&] { return arch::parse_hf_config(parts[0], "config.json"); });
  if (!config || config->num_layers > fuzz::kMaxLayers) return 0;
  if (const auto weights =
          fuzz::accepted([&] { return hf::FolderReader(folder.path(), *config); })) {
    fuzz::load_all(*weights, *config);
  }
  return 0;
}
