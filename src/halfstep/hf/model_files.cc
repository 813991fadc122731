#include "halfstep/hf/model_files.h"

#include <algorithm>
#include <array>
#include <system_error>

#include "halfstep/core/error.h"
#include "halfstep/io/json.h"

namespace halfstep::hf {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 10> kTokenizerFiles{"tokenizer.json",
                                                           "tokenizer_config.json",
                                                           "special_tokens_map.json",
                                                           "added_tokens.json",
                                                           "generation_config.json",
                                                           "vocab.json",
                                                           "vocab.txt",
                                                           "merges.txt",
                                                           "tokenizer.model",
                                                           "sentencepiece.bpe.model"};

}  // namespace

bool is_tokenizer_file(std::string_view name) {
  return std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), name) != kTokenizerFiles.end() ||
         name.starts_with("chat_template.");
}

io::SafetensorsDtype weight_dtype(Dtype dtype) {
  check(dtype == Dtype::kF32 || dtype == Dtype::kBF16, "hf: weights are FP32 or BF16");
  return dtype == Dtype::kF32 ? io::SafetensorsDtype::kF32 : io::SafetensorsDtype::kBF16;
}

std::string config_text(const arch::ModelConfig& config,
                        std::span<const io::SafetensorsSpec> tensors, const nlohmann::json& ids) {
  auto document = nlohmann::ordered_json::parse(arch::to_hf_config(config));
  // Norms may be FP32 beside BF16 matrices: a model is called by these.
  const bool bf16 = std::any_of(tensors.begin(), tensors.end(), [](const io::SafetensorsSpec& t) {
    return t.shape.size() > 1 && t.dtype == io::SafetensorsDtype::kBF16;
  });
  document["torch_dtype"] = bf16 ? "bfloat16" : "float32";
  for (const auto& [key, id] : ids.items()) document[key] = id;
  return document.dump(2) + "\n";
}

nlohmann::json token_ids(const fs::path& folder) {
  nlohmann::json ids = nlohmann::json::object();
  if (folder.empty()) return ids;  // and not the file of that name in the current folder
  std::error_code error;
  if (!fs::is_regular_file(folder / kConfigFile, error)) return ids;
  const nlohmann::json config = io::read_json_file(folder / kConfigFile);
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.is_object() && config.contains(key) && !config[key].is_null()) {
      ids[key] = config[key];
    }
  }
  return ids;
}

std::vector<fs::path> tokenizer_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (is_tokenizer_file(name) && it->is_regular_file(error)) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace halfstep::hf
