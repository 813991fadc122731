#include "halfstep/io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "halfstep/core/error.h"
#include "halfstep/io/json.h"

namespace halfstep::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

struct DtypeRow {
  SafetensorsDtype dtype;
  std::string_view name;
  int64_t bytes;
};
using enum SafetensorsDtype;
constexpr std::array<DtypeRow, 13> kDtypes{{{kF64, "F64", 8},
                                            {kF32, "F32", 4},
                                            {kF16, "F16", 2},
                                            {kBF16, "BF16", 2},
                                            {kI64, "I64", 8},
                                            {kI32, "I32", 4},
                                            {kI16, "I16", 2},
                                            {kI8, "I8", 1},
                                            {kU64, "U64", 8},
                                            {kU32, "U32", 4},
                                            {kU16, "U16", 2},
                                            {kU8, "U8", 1},
                                            {kBool, "BOOL", 1}}};

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kDataAlignment = 64;
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr const char* kDamagedHint = "the file is damaged or incomplete; copy or download it again";

// shape × dtype, or nullopt if that is no 64-bit number. A zero dimension makes an empty tensor,
// whatever the others are.
std::optional<int64_t> tensor_bytes(const std::vector<int64_t>& shape, SafetensorsDtype dtype) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t bytes = safetensors_dtype_bytes(dtype);
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

// One entry of the header; its offset still counts from the start of the data.
SafetensorsTensor parse_tensor(const std::string& name, const nlohmann::json& entry,
                               int64_t data_bytes, const std::string& file) {
  const std::string place = fmt::format("tensor '{}'", name);
  const JsonObject object(entry, file, place);
  for (const auto& item : entry.items()) {
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets") {
      throw InputError(fmt::format("{}: {}: unknown key '{}'", file, place, item.key()));
    }
  }
  SafetensorsTensor tensor;
  tensor.name = name;
  const auto dtype = parse_safetensors_dtype(object.string("dtype"));
  if (!dtype) object.fail("dtype", "F64, F32, F16, BF16, an I or U type or BOOL");
  tensor.dtype = *dtype;
  tensor.shape = object.integers("shape");
  if (std::any_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t n) { return n < 0; })) {
    object.fail("shape", "sizes of at least 0");
  }
  const auto offsets = object.integers("data_offsets");
  if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0]) {
    object.fail("data_offsets", "[begin, end] with 0 <= begin <= end");
  }
  if (offsets[1] > data_bytes) {
    throw InputError(fmt::format("{}: {}: data end at byte {} of the data, the file has only {}",
                                 file, place, offsets[1], data_bytes),
                     kDamagedHint);
  }
  tensor.offset = offsets[0];
  tensor.bytes = offsets[1] - offsets[0];
  const auto expected = tensor_bytes(tensor.shape, tensor.dtype);
  if (!expected) object.fail("shape", "a tensor of less than 2^63 bytes");
  if (*expected != tensor.bytes) {
    throw InputError(
        fmt::format("{}: {}: got {} bytes of data, expected {} ({} of shape [{}])", file, place,
                    tensor.bytes, *expected, safetensors_dtype_name(tensor.dtype),
                    fmt::join(tensor.shape, ", ")),
        kDamagedHint);
  }
  return tensor;
}

std::map<std::string, std::string> parse_metadata(const JsonObject& object) {
  std::map<std::string, std::string> out;
  for (const auto& item : object.value().items()) out[item.key()] = object.string(item.key());
  return out;
}

// Sorts by place in the file and checks that the tensors cover the data exactly once.
void check_cover(std::vector<SafetensorsTensor>& tensors, int64_t data_bytes,
                 const std::string& file) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  int64_t end = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.offset != end) {
      throw InputError(
          fmt::format("{}: tensor '{}': data start at byte {} of the data, expected {}: {}", file,
                      tensor.name, tensor.offset, end,
                      tensor.offset < end ? "it overlaps the tensor before it"
                                          : "a gap after the tensor before it"),
          kDamagedHint);
    }
    end += tensor.bytes;
  }
  if (end != data_bytes) {
    throw InputError(fmt::format("{}: {} bytes after the last tensor{}", file, data_bytes - end,
                                 tensors.empty() ? "" : " '" + tensors.back().name + "'"),
                     kDamagedHint);
  }
}

}  // namespace

std::string_view safetensors_dtype_name(SafetensorsDtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].name;
}

std::optional<SafetensorsDtype> parse_safetensors_dtype(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

int64_t safetensors_dtype_bytes(SafetensorsDtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].bytes;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file_bytes,
                                    const std::string& file) {
  const auto size = static_cast<int64_t>(file_bytes.size());
  if (size < kLengthBytes) {
    throw InputError(fmt::format("{}: got {} bytes, expected a safetensors file of at least {}",
                                 file, size, kLengthBytes),
                     kDamagedHint);
  }
  // First, as the length that a text begins with means nothing to its reader.
  if (size == kLengthBytes || file_bytes[kLengthBytes] != std::byte{'{'}) {
    throw InputError(
        fmt::format("{}: no safetensors file: the header does not start with '{{'", file),
        "is it another kind of file?");
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file_bytes.data(), sizeof header_bytes);
  // Compared unsigned and before any addition: 2^64 − 1 is a length that attackers write.
  if (header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    throw InputError(fmt::format("{}: header of {} bytes, expected at most {}", file, header_bytes,
                                 kMaxSafetensorsHeaderBytes),
                     "is this a safetensors file?");
  }
  if (header_bytes > static_cast<uint64_t>(size - kLengthBytes)) {
    throw InputError(
        fmt::format("{}: header of {} bytes in a file of {}", file, header_bytes, size),
        kDamagedHint);
  }
  const std::string_view text(reinterpret_cast<const char*>(file_bytes.data()) + kLengthBytes,
                              header_bytes);
  const nlohmann::json document = parse_json(text, file + ": header");
  const JsonObject object(document, file);

  SafetensorsHeader header;
  header.data_start = kLengthBytes + static_cast<int64_t>(header_bytes);
  const int64_t data_bytes = size - header.data_start;
  for (const auto& item : document.items()) {
    if (item.key() == kMetadataKey) {
      header.metadata = parse_metadata(object.object(kMetadataKey));
    } else {
      header.tensors.push_back(parse_tensor(item.key(), item.value(), data_bytes, file));
    }
  }
  check_cover(header.tensors, data_bytes, file);
  for (SafetensorsTensor& tensor : header.tensors) tensor.offset += header.data_start;
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &header_.tensors[it->second];
}

const SafetensorsTensor& SafetensorsFile::at(std::string_view name) const {
  const SafetensorsTensor* tensor = find(name);
  if (tensor == nullptr) {
    throw InputError(fmt::format("{}: no tensor '{}'", path().string(), name),
                     fmt::format("see what is in it: halfstep inspect {}", path().string()));
  }
  return *tensor;
}

std::string format_safetensors_header(std::span<const SafetensorsSpec> tensors,
                                      const std::map<std::string, std::string>& metadata,
                                      SafetensorsHeader* header) {
  // ordered_json keeps the tensors in the order of their data.
  nlohmann::ordered_json document = nlohmann::ordered_json::object();
  if (!metadata.empty()) document[kMetadataKey] = metadata;
  int64_t end = 0;
  header->tensors.clear();
  header->metadata = metadata;
  std::map<std::string_view, bool> seen;
  for (const SafetensorsSpec& spec : tensors) {
    const auto bytes = tensor_bytes(spec.shape, spec.dtype);
    check(bytes.has_value() && *bytes >= 0, "safetensors: a tensor to be written is too large");
    check(spec.name != kMetadataKey && seen.emplace(spec.name, true).second,
          "safetensors: a tensor's name is reserved or stands twice");
    header->tensors.push_back({spec.name, spec.dtype, spec.shape, end, *bytes});
    end += *bytes;
  }
  // Filled as an array of members at once: operator[] of ordered_json is linear in their number.
  auto& members = document.get_ref<nlohmann::ordered_json::object_t&>();
  for (const SafetensorsTensor& tensor : header->tensors) {
    members.emplace_back(
        tensor.name,
        nlohmann::ordered_json{{"dtype", safetensors_dtype_name(tensor.dtype)},
                               {"shape", tensor.shape},
                               {"data_offsets", {tensor.offset, tensor.offset + tensor.bytes}}});
  }
  std::string text = document.dump();
  const auto unpadded = static_cast<int64_t>(text.size()) + kLengthBytes;
  const int64_t padded = (unpadded + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  text.append(static_cast<size_t>(padded - unpadded), ' ');
  check(static_cast<int64_t>(text.size()) <= kMaxSafetensorsHeaderBytes,
        "safetensors: the header to be written is longer than readers accept");
  header->data_start = padded;
  for (SafetensorsTensor& tensor : header->tensors) tensor.offset += padded;

  const auto length = static_cast<uint64_t>(text.size());
  std::string out(kLengthBytes, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + text;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::span<const SafetensorsSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  file_.write(format_safetensors_header(tensors, metadata, &header_));
  for (const SafetensorsTensor& tensor : header_.tensors) expected_bytes_ += tensor.bytes;
}

void SafetensorsWriter::write(std::span<const std::byte> data) {
  written_bytes_ += static_cast<int64_t>(data.size());
  check(written_bytes_ <= expected_bytes_, "safetensors: more data than the header promised");
  file_.write(data);
}

void SafetensorsWriter::finish() {
  check(written_bytes_ == expected_bytes_, "safetensors: fewer data than the header promised");
  file_.commit();
}

int64_t tensor_bytes(const SafetensorsSpec& tensor) {
  int64_t bytes = safetensors_dtype_bytes(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= size;
  return bytes;
}

}  // namespace halfstep::io
