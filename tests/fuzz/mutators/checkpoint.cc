// For checkpoint folders: edits one of the three files and then, nearly always, makes every size
// and checksum right again that the edit has broken, from the innermost to the manifest's own.
#include "../seal.h"
#include "../targets/target.h"
#include "safetensors.h"

namespace halfstep::fuzz {
namespace {

using nlohmann::json;

// The number at `key` if it is one that lies inside `size` bytes.
std::optional<size_t> place(const json& object, const char* key, size_t size) {
  if (!object.contains(key) || !object[key].is_number_unsigned()) return std::nullopt;
  const auto value = object[key].get<uint64_t>();
  return value <= size ? std::optional<size_t>(value) : std::nullopt;
}

const std::string& shard_bytes(const json& shard, const std::vector<std::string>& parts) {
  return parts[shard.contains("file") && shard["file"] == "b.safetensors" ? 2 : 1];
}

void seal_shards(json& shards, const std::vector<std::string>& parts) {
  for (json& shard : shards) {
    if (!shard.is_object()) continue;
    const std::string& bytes = shard_bytes(shard, parts);
    shard["bytes"] = bytes.size();
    if (const auto header = place(shard, "header_bytes", bytes.size())) {
      shard["header_xxh3"] = hex_checksum(bytes.substr(0, *header));
    }
  }
}

void seal_slices(json& slices, const json& shards, const std::vector<std::string>& parts) {
  for (json& slice : slices) {
    if (!slice.is_object() || shards.empty()) continue;
    const auto index = place(slice, "shard", shards.size() - 1);
    if (!index || !shards[*index].is_object()) continue;
    const std::string& bytes = shard_bytes(shards[*index], parts);
    const auto offset = place(slice, "offset", bytes.size());
    const auto count = place(slice, "bytes", bytes.size());
    if (offset && count && *count > 0) {
      slice["xxh3"] = {hex_checksum(bytes.substr(*offset, *count))};
    }
  }
}

void seal(std::vector<std::string>& parts) {
  json document = json::parse(parts[0], nullptr, false);
  if (!document.is_object()) return;
  if (document.contains("shards") && document["shards"].is_array()) {
    seal_shards(document["shards"], parts);
    if (document.contains("slices") && document["slices"].is_array()) {
      seal_slices(document["slices"], document["shards"], parts);
    }
  }
  parts[0] = sealed(document);
}

}  // namespace
}  // namespace halfstep::fuzz

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  using namespace halfstep::fuzz;
  Random random(seed);
  auto parts = split_parts(text_of(data, size), 3);
  const size_t room = max_size > size ? max_size - size : 0;
  const size_t chosen = random() % 4;
  if (chosen < 2) {
    parts[0] = mutate_json_text(parts[0], parts[0].size() + room, random);
  } else {
    std::string& shard = parts[chosen - 1];
    shard = random() % 2 == 0 ? mutate_bytes(shard, shard.size() + room)
                              : mutate_safetensors(shard, shard.size() + room, random);
  }
  if (random() % 16 != 0) seal(parts);
  return give_back(join_parts(parts), data, max_size);
}
