// A checkpoint's manifest.json: what is accepted says of every value just what the text says, keeps
// each slice inside its shard, and stores no element twice.
#include "halfstep/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "target.h"

namespace halfstep::fuzz {
namespace {

using checkpoint::Manifest;
using nlohmann::json;

// Whether `whole` has everything that `part` has; objects may have further keys.
bool has_all_of(const json& whole, const json& part) {
  if (part.is_object() && whole.is_object()) {
    for (const auto& [key, value] : part.items()) {
      if (!whole.contains(key) || !has_all_of(whole.at(key), value)) return false;
    }
    return true;
  }
  if (part.is_array() && whole.is_array() && part.size() == whole.size()) {
    for (size_t i = 0; i < part.size(); ++i) {
      if (!has_all_of(whole[i], part[i])) return false;
    }
    return true;
  }
  return whole == part;
}

void check_text(const Manifest& manifest, std::string_view text) {
  const std::string again = checkpoint::format_manifest(manifest);
  check(checkpoint::format_manifest(checkpoint::parse_manifest(again, "again")) == again,
        "a manifest round-trips");
  json written = json::parse(again);
  written.erase("checksum");
  check(has_all_of(json::parse(text), written), "every value is the one of the text");
}

void check_slices(const Manifest& manifest) {
  for (size_t i = 0; i < manifest.slices.size(); ++i) {
    const checkpoint::StoredSlice& slice = manifest.slices[i];
    check(checkpoint::slice_fault(slice).empty(), "a slice is inside its parameter");
    const auto& shard = manifest.shards.at(static_cast<size_t>(slice.shard));
    check(slice.offset >= shard.header_bytes && slice.bytes() >= 0 &&
              slice.offset <= shard.bytes - slice.bytes(),
          "a slice is inside its shard");
    check(static_cast<int64_t>(slice.checksums.size()) == checkpoint::num_chunks(slice.bytes()),
          "a checksum per chunk");
    for (size_t j = 0; j < i; ++j) {
      const checkpoint::StoredSlice& other = manifest.slices[j];
      if (slice.name != other.name) continue;
      check(slice.shape == other.shape, "one shape per parameter");
      if (slice.kind != other.kind) continue;
      check(slice.dtype == other.dtype, "one dtype per tensor");
      check(!checkpoint::slices_overlap(slice, other), "no element twice");
      check(checkpoint::format_slice_name(slice) != checkpoint::format_slice_name(other),
            "no name twice");
    }
  }
}

}  // namespace
}  // namespace halfstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  const std::string_view text = fuzz::text_of(data, size);
  if (const auto manifest =
          fuzz::accepted([&] { return checkpoint::parse_manifest(text, "manifest.json"); })) {
    fuzz::check_text(*manifest, text);
    fuzz::check_slices(*manifest);
  }
  return 0;
}
