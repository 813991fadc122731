// The safetensors format: eight bytes N (little endian), N bytes of JSON header, then the tensors'
// data. Reader and writer are strict: what is accepted has one meaning, every byte of the file
// belongs to exactly one tensor, and anything else is an InputError that names file and tensor.
// Element types are stored and returned as they are; nothing is converted here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/io/file.h"
#include "halfstep/io/mapped_file.h"

namespace halfstep::io {

enum class SafetensorsDtype : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};
std::string_view safetensors_dtype_name(SafetensorsDtype dtype);  // "F64", …, "BOOL"
std::optional<SafetensorsDtype> parse_safetensors_dtype(std::string_view name);
int64_t safetensors_dtype_bytes(SafetensorsDtype dtype);

// What a header says of one tensor.
struct SafetensorsTensor {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;  // empty: a scalar
  int64_t offset = 0;          // of its data, from the start of the file
  int64_t bytes = 0;           // shape × dtype
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;       // in the order of their data
  std::map<std::string, std::string> metadata;  // the header's __metadata__
  int64_t data_start = 0;
};

// Longest JSON header that is read. 100 MB is some million tensors.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Checks and parses the header of a whole file in memory (only the header is touched). `file` is
// its name in messages.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file_bytes, const std::string& file);

// A file of tensors, mapped: reading a tensor's data touches only its pages.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<SafetensorsTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  int64_t data_start() const { return header_.data_start; }

  const SafetensorsTensor* find(std::string_view name) const;  // nullptr: not there
  // Throws InputError naming file and tensor if it is not there.
  const SafetensorsTensor& at(std::string_view name) const;
  // The data, not necessarily aligned to the element size: copy them with memcpy.
  std::span<const std::byte> data(const SafetensorsTensor& tensor) const {
    return file_.bytes().subspan(static_cast<size_t>(tensor.offset),
                                 static_cast<size_t>(tensor.bytes));
  }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;
};

struct SafetensorsSpec {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;
};

// Of its data. Its shape is one whose bytes a 64-bit number can say.
int64_t tensor_bytes(const SafetensorsSpec& tensor);

// Writes a file as a stream: all names, types and shapes first, then the data of each tensor in the
// same order, in pieces of any size; nothing is kept in memory. The header is padded with spaces so
// that the data start at a multiple of 64; list larger element types first to keep all of them
// aligned. Without finish() no file appears.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::span<const SafetensorsSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // The header that was written: offsets of the data to come.
  const SafetensorsHeader& header() const { return header_; }
  void write(std::span<const std::byte> data);
  // Throws InternalError unless exactly the promised bytes were written.
  void finish();

 private:
  AtomicFile file_;
  SafetensorsHeader header_;
  int64_t expected_bytes_ = 0;
  int64_t written_bytes_ = 0;
};

// The bytes in front of the data (length, JSON, padding) and the header they stand for.
std::string format_safetensors_header(std::span<const SafetensorsSpec> tensors,
                                      const std::map<std::string, std::string>& metadata,
                                      SafetensorsHeader* header);

}  // namespace halfstep::io
