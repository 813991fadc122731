// A manifest whose own checksum is right again after an edit. The checksum protects against damage,
// not against an adversary, and without this every attack on a manifest would end at it. Only for
// tests.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "halfstep/io/checksum.h"

namespace halfstep::fuzz {

inline std::string hex_checksum(const std::string& bytes) {
  return fmt::format("{:016x}", io::checksum(bytes.data(), bytes.size()));
}

// `document` is a JSON object. What is not UTF-8 in it is replaced, as no JSON can hold it.
inline std::string sealed(nlohmann::json document) {
  const auto text = [&] {
    return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  document.erase("checksum");
  document["checksum"] = hex_checksum(text());
  return text();
}

}  // namespace halfstep::fuzz
