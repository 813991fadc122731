// Mutations of a safetensors file that keep its frame: eight bytes of length, header, data.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "json_mutation.h"

namespace halfstep::fuzz {

// The bytes that the tensors of a header claim, if it makes sense.
inline size_t claimed_bytes(const nlohmann::json& header, size_t otherwise) {
  size_t end = 0;
  if (!header.is_object()) return otherwise;
  for (const auto& [name, tensor] : header.items()) {
    const auto offsets = tensor.is_object() && tensor.contains("data_offsets")
                             ? tensor["data_offsets"]
                             : nlohmann::json();
    if (offsets.is_array() && !offsets.empty() && offsets.back().is_number_unsigned()) {
      end = std::max(end, offsets.back().get<size_t>());
    }
  }
  return end;
}

inline std::string mutate_safetensors(const std::string& file, size_t max_size, Random& random) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), std::min(sizeof length, file.size()));
  if (file.size() < 8 || length > file.size() - 8 || random() % 8 == 0) {
    return mutate_bytes(file, max_size);
  }
  const std::string header = mutate_json_text(file.substr(8, length), max_size, random);
  std::string content = file.substr(8 + length);
  if (random() % 2 == 0) {
    const auto json = nlohmann::json::parse(header, nullptr, false);
    content.resize(std::min(claimed_bytes(json, content.size()), max_size), 'x');
  }
  length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + header + content;
}

}  // namespace halfstep::fuzz
