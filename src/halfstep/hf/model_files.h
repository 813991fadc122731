// What stands in a Hugging Face folder beside the weights: the names of its files, its config.json
// as we write it, and which files belong to a tokenizer. Used by the reader and the writer of
// folders and by `halfstep convert`.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/arch/model_config.h"
#include "halfstep/core/dtype.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::hf {

inline constexpr std::string_view kConfigFile = "config.json";
inline constexpr std::string_view kWeightsFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// F32 or BF16: a weight has no other dtype here.
io::SafetensorsDtype weight_dtype(Dtype dtype);

// arch::to_hf_config with the dtype of the matrices, which loaders go by, and the given token ids.
std::string config_text(const arch::ModelConfig& config,
                        std::span<const io::SafetensorsSpec> tensors, const nlohmann::json& ids);

// bos_token_id, eos_token_id and pad_token_id of a folder's config.json, as far as they are there:
// generation stops at the second, and our model knows nothing of them. Empty without the file.
nlohmann::json token_ids(const std::filesystem::path& folder);

// Whether a file of this name belongs to a tokenizer.
bool is_tokenizer_file(std::string_view name);

// A tokenizer's files in a folder, sorted: tokenizer*.json, chat_template.*, vocabularies, merges,
// special tokens and generation_config.json. Empty if there is no such folder.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& folder);

}  // namespace halfstep::hf
