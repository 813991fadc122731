#include "halfstep/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "halfstep/checkpoint/train_state_json.h"
#include "halfstep/io/checksum.h"
#include "halfstep/io/json.h"

namespace halfstep::checkpoint {
namespace {

using io::JsonObject;
using nlohmann::ordered_json;

std::string to_hex(uint64_t value) { return fmt::format("{:016x}", value); }

uint64_t from_hex(const std::string& text, const JsonObject& object, std::string_view key) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  // Written in one way only: a digit of the other case is a flipped bit.
  if (error != std::errc() || end != text.data() + text.size() || to_hex(value) != text) {
    object.fail(key, "16 hexadecimal digits");
  }
  return value;
}

// The checksum of a document without its key "checksum": of its compact form with sorted keys, so
// that it does not depend on spaces.
uint64_t document_checksum(nlohmann::json document) {
  document.erase("checksum");
  const std::string text = document.dump();
  return io::checksum(text.data(), text.size());
}

ordered_json shard_json(const StoredShard& shard) {
  return {{"file", shard.file},
          {"bytes", shard.bytes},
          {"header_bytes", shard.header_bytes},
          {"header_xxh3", to_hex(shard.header_checksum)}};
}

ordered_json slice_json(const StoredSlice& slice) {
  ordered_json checksums = ordered_json::array();
  for (const uint64_t value : slice.checksums) checksums.push_back(to_hex(value));
  return {{"kind", tensor_kind_name(slice.kind)},
          {"name", slice.name},
          {"shape", slice.shape},
          {"box", {slice.box.row0, slice.box.row1, slice.box.col0, slice.box.col1}},
          {"start", slice.start},
          {"numel", slice.numel},
          {"dtype", dtype_name(slice.dtype)},
          {"bytes", slice.bytes()},
          {"shard", slice.shard},
          {"offset", slice.offset},
          {"xxh3", std::move(checksums)}};
}

StoredShard parse_shard(const JsonObject& object) {
  StoredShard shard;
  shard.file = object.string("file");
  // A plain name: a manifest must not reach out of its folder.
  if (shard.file.empty() || shard.file[0] == '.' || shard.file.find('/') != shard.file.npos) {
    object.fail("file", "the name of a file beside the manifest");
  }
  shard.bytes = object.integer("bytes");
  shard.header_bytes = object.integer("header_bytes");
  if (shard.header_bytes < 0 || shard.bytes < shard.header_bytes) {
    object.fail("bytes", "at least header_bytes");
  }
  shard.header_checksum = from_hex(object.string("header_xxh3"), object, "header_xxh3");
  return shard;
}

StoredSlice parse_slice(const JsonObject& object, const std::vector<StoredShard>& shards) {
  StoredSlice slice;
  const auto kind = parse_tensor_kind(object.string("kind"));
  if (!kind) object.fail("kind", "a kind of tensor, such as exp_avg");
  slice.kind = *kind;
  slice.name = object.string("name");
  slice.shape = object.integers("shape");
  const auto box = object.integers("box");
  if (box.size() != 4) object.fail("box", "[row0, row1, col0, col1]");
  slice.box = {box[0], box[1], box[2], box[3]};
  slice.start = object.integer("start");
  slice.numel = object.integer("numel");
  const auto dtype = parse_dtype(object.string("dtype"));
  if (!dtype) object.fail("dtype", "fp32, bf16, ue6m10 or int16");
  slice.dtype = *dtype;
  if (const std::string fault = slice_fault(slice); !fault.empty()) object.fail("name", fault);
  // No save stores nothing, and two empty slices could have one name.
  if (slice.numel == 0) object.fail("numel", "at least 1");
  if (object.integer("bytes") != slice.bytes()) {
    object.fail("bytes",
                fmt::format("{} ({} x {})", slice.bytes(), slice.numel, dtype_name(slice.dtype)));
  }
  slice.shard = object.integer("shard");
  if (slice.shard < 0 || slice.shard >= static_cast<int64_t>(shards.size())) {
    object.fail("shard", fmt::format("less than {}", shards.size()));
  }
  const StoredShard& shard = shards[static_cast<size_t>(slice.shard)];
  slice.offset = object.integer("offset");
  if (slice.offset < shard.header_bytes || slice.offset > shard.bytes - slice.bytes()) {
    object.fail("offset", fmt::format("data inside the {} bytes of {}", shard.bytes, shard.file));
  }
  for (const std::string& text : object.strings("xxh3")) {
    slice.checksums.push_back(from_hex(text, object, "xxh3"));
  }
  if (static_cast<int64_t>(slice.checksums.size()) != num_chunks(slice.bytes())) {
    object.fail("xxh3", fmt::format("{} checksums", num_chunks(slice.bytes())));
  }
  return slice;
}

// The first of `slices`, all of one tensor, that has an element of an earlier one too, and that
// one. Sorted first, since a tensor may have as many slices as there are ranks: in one box only
// neighbours can overlap, and other boxes hardly ever do.
using SlicePair = std::pair<const StoredSlice*, const StoredSlice*>;
std::optional<SlicePair> find_overlap(std::vector<const StoredSlice*> slices) {
  const auto key = [](const StoredSlice* s) {
    return std::tuple(s->box.row0, s->box.row1, s->box.col0, s->box.col1, s->start);
  };
  std::stable_sort(slices.begin(), slices.end(),
                   [&](const auto* a, const auto* b) { return key(a) < key(b); });
  size_t first_of_box = 0;
  for (size_t i = 1; i < slices.size(); ++i) {
    if (slices[i]->box == slices[i - 1]->box) {
      if (slices_overlap(*slices[i], *slices[i - 1])) return SlicePair(slices[i], slices[i - 1]);
    } else {
      first_of_box = i;
    }
    for (size_t j = 0; j < first_of_box; ++j) {
      if (slices_overlap(*slices[i], *slices[j])) return SlicePair(slices[i], slices[j]);
    }
  }
  return std::nullopt;
}

// What slices of the same tensor have to agree on, and that no element is stored twice.
void check_consistent(const std::vector<StoredSlice>& slices, const std::string& file) {
  std::map<std::pair<TensorKind, std::string_view>, std::vector<const StoredSlice*>> tensors;
  std::map<std::string_view, const StoredSlice*> parameters;
  const auto fail = [&](const StoredSlice& slice, std::string_view what) {
    throw InputError(fmt::format("{}: {}: {}", file, format_slice_name(slice), what),
                     "the checkpoint was not written by halfstep, or its manifest was edited");
  };
  for (const StoredSlice& slice : slices) {
    const auto [first, inserted] = parameters.emplace(slice.name, &slice);
    if (first->second->shape != slice.shape) fail(slice, "its shape differs from another slice's");
    auto& others = tensors[{slice.kind, slice.name}];
    others.push_back(&slice);
    if (others[0]->dtype != slice.dtype) fail(slice, "its dtype differs from another slice's");
  }
  for (const auto& [tensor, stored] : tensors) {
    if (const auto pair = find_overlap(stored)) {
      fail(*pair->first, "overlaps " + format_slice_name(*pair->second));
    }
  }
}

// One line per key, and one per shard and slice, so that people and diff can read it.
std::string to_text(const ordered_json& document) {
  std::string text = "{\n";
  bool first = true;
  for (const auto& [key, value] : document.items()) {
    text += first ? "" : ",\n";
    first = false;
    text += ordered_json(key).dump() + ": ";
    if (value.is_array()) {
      text += '[';
      for (size_t i = 0; i < value.size(); ++i) {
        text += (i == 0 ? "\n  " : ",\n  ") + value[i].dump();
      }
      text += "\n]";
    } else {
      text += value.dump();
    }
  }
  return text + "\n}\n";
}

void check_version(const JsonObject& document, const std::string& file) {
  const int64_t version = document.integer("format_version");
  if (version > kFormatVersion) {
    throw NewerFormatError(fmt::format("{}: checkpoint format {}, this halfstep reads up to {}",
                                       file, version, kFormatVersion),
                           fmt::format("use a halfstep that knows format {}", version));
  }
  if (version < 1) document.fail("format_version", "at least 1");
}

}  // namespace

std::string format_manifest(const Manifest& manifest) {
  ordered_json document{{"format_version", kFormatVersion}};
  document.update(train_state_to_json(manifest.state));
  document["shards"] = ordered_json::array();
  for (const StoredShard& shard : manifest.shards) {
    document["shards"].push_back(shard_json(shard));
  }
  document["slices"] = ordered_json::array();
  for (const StoredSlice& slice : manifest.slices) {
    document["slices"].push_back(slice_json(slice));
  }
  document["checksum"] = to_hex(document_checksum(nlohmann::json(document)));
  return to_text(document);
}

Manifest parse_manifest(std::string_view text, const std::string& file) {
  const nlohmann::json json = io::parse_json(text, file);
  const JsonObject document(json, file);
  check_version(document, file);
  if (from_hex(document.string("checksum"), document, "checksum") != document_checksum(json)) {
    throw InputError(fmt::format("{}: the manifest does not match its own checksum", file),
                     "it is damaged or was edited; take another checkpoint");
  }
  Manifest manifest;
  manifest.state = train_state_from_json(document);
  for (const JsonObject& shard : document.objects("shards")) {
    manifest.shards.push_back(parse_shard(shard));
  }
  for (const JsonObject& slice : document.objects("slices")) {
    manifest.slices.push_back(parse_slice(slice, manifest.shards));
  }
  check_consistent(manifest.slices, file);
  return manifest;
}

}  // namespace halfstep::checkpoint
