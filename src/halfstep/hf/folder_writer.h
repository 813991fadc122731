// Writes a Hugging Face folder as `transformers` does: config.json, model.safetensors, or shards
// with model.safetensors.index.json, and copies of other files (a tokenizer's). All or nothing: all
// of it is written and flushed in FOLDER.saving beside the folder, which then takes its name. So a
// folder of that name is complete, whatever was killed; what a killed export has left is removed by
// the next one. Tensors are streamed: memory is what the caller hands over at a time.
//
// A folder that has something in it is never written into: it might be the model that one began
// with, and a mixture of two exports loads as neither.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "halfstep/arch/model_config.h"
#include "halfstep/hf/folder_reader.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::hf {

inline constexpr int64_t kMaxShardBytes = 5'000'000'000;  // the default of `transformers`

struct FolderContent {
  std::string config_json = {};
  std::vector<io::SafetensorsSpec> tensors = {};
  int64_t max_shard_bytes = kMaxShardBytes;
  std::vector<std::filesystem::path> files = {};  // copied under their own names
};

// Hands all bytes of a tensor, by its index in FolderContent::tensors, to `sink`, in order and in
// pieces of any size. Called once for each tensor, in the order of the files.
using Sink = std::function<void(std::span<const std::byte> bytes)>;
using TensorProducer = std::function<void(int64_t tensor, const Sink& sink)>;

struct WrittenFolder {
  int64_t tensor_bytes = 0;
  int64_t num_files = 0;              // of tensors
  std::vector<std::string> warnings;  // what a killed export had left
};

// Throws UsageError if the folder is not empty or another process writes it, InputError for files
// that cannot be written, and whatever `produce` throws; nothing of it remains then.
WrittenFolder write_folder(const std::filesystem::path& folder, const FolderContent& content,
                           const TensorProducer& produce);

// The same from memory: one slot per parameter of arch::parameter_list(config), in one file.
void save_folder(const std::filesystem::path& folder, const arch::ModelConfig& config,
                 std::span<const WeightSlot> slots);

// Throws the UsageError of write_folder, before anything is read.
void refuse_occupied(const std::filesystem::path& folder);

// Which tensors go into which file, in order: a file is full when the next tensor would exceed the
// limit. A tensor is never split, so one that is larger has a file of its own.
std::vector<std::vector<int64_t>> plan_shards(std::span<const io::SafetensorsSpec> tensors,
                                              int64_t max_shard_bytes);

}  // namespace halfstep::hf
