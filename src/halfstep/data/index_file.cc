#include "halfstep/data/index_file.h"

#include <fmt/core.h>

#include <cstring>
#include <limits>

#include "halfstep/core/error.h"

namespace halfstep::data {
namespace {

// Magic (9 bytes), version (uint64), type (uint8), sequences (uint64), document entries (uint64);
// then lengths (int32 each), pointers (int64 each) and the documents' first sequences (int64 each).
constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr uint64_t kVersion = 1;
constexpr int64_t kHeaderBytes = 34;
constexpr int64_t kBytesPerSequence = 4 + 8;

// The arrays begin at byte 34, so nothing in the file is aligned.
template <typename T>
T load(std::span<const std::byte> bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw InputError(
      fmt::format("{}: {}", path, what),
      "the pair is damaged or of another format: make it again with `halfstep data build`");
}

TokenDtype parse_dtype(uint8_t code, const std::string& path) {
  switch (static_cast<TokenDtype>(code)) {
    case TokenDtype::kUint8:
    case TokenDtype::kInt8:
    case TokenDtype::kInt16:
    case TokenDtype::kInt32:
    case TokenDtype::kInt64:
    case TokenDtype::kUint16:
      return static_cast<TokenDtype>(code);
  }
  if (code == 6 || code == 7)
    fail(path, fmt::format("type code {} is a float, expected an integer type", code));
  fail(path, fmt::format("unknown type code {}", code));
}

}  // namespace

int64_t token_bytes(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::kUint8:
    case TokenDtype::kInt8:
      return 1;
    case TokenDtype::kInt16:
    case TokenDtype::kUint16:
      return 2;
    case TokenDtype::kInt32:
      return 4;
    case TokenDtype::kInt64:
      return 8;
  }
  throw InternalError("token_bytes: unknown type");
}

std::string_view token_dtype_name(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::kUint8:
      return "uint8";
    case TokenDtype::kInt8:
      return "int8";
    case TokenDtype::kInt16:
      return "int16";
    case TokenDtype::kInt32:
      return "int32";
    case TokenDtype::kInt64:
      return "int64";
    case TokenDtype::kUint16:
      return "uint16";
  }
  throw InternalError("token_dtype_name: unknown type");
}

int64_t max_token_id(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::kUint8:
      return std::numeric_limits<uint8_t>::max();
    case TokenDtype::kInt8:
      return std::numeric_limits<int8_t>::max();
    case TokenDtype::kInt16:
      return std::numeric_limits<int16_t>::max();
    case TokenDtype::kUint16:
      return std::numeric_limits<uint16_t>::max();
    case TokenDtype::kInt32:
    case TokenDtype::kInt64:
      return std::numeric_limits<int32_t>::max();
  }
  throw InternalError("max_token_id: unknown type");
}

TokenDtype token_dtype_for(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenDtype::kUint16 : TokenDtype::kInt32;
}

IndexFile IndexFile::parse(std::span<const std::byte> bytes, int64_t bin_bytes,
                           const std::string& path) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < kHeaderBytes)
    fail(path, fmt::format("{} bytes, expected a header of {}", size, kHeaderBytes));
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    fail(path, "does not begin with MMIDIDX: no indexed dataset");
  }
  if (const auto version = load<uint64_t>(bytes, 9); version != kVersion) {
    fail(path, fmt::format("version {}, expected {}", version, kVersion));
  }
  IndexFile index;
  index.dtype_ = parse_dtype(load<uint8_t>(bytes, 17), path);

  // The counts are bounded by the file's size before they are multiplied.
  const auto sequences = load<uint64_t>(bytes, 18), entries = load<uint64_t>(bytes, 26);
  const auto body = static_cast<uint64_t>(size - kHeaderBytes);
  if (sequences > body / kBytesPerSequence ||
      entries > (body - sequences * kBytesPerSequence) / 8) {
    fail(path, fmt::format("{} sequences and {} document entries do not fit into {} bytes",
                           sequences, entries, size));
  }
  if (entries == 0) fail(path, "no document entries, expected at least one");
  const uint64_t used = sequences * kBytesPerSequence + entries * 8;
  if (body - used == sequences && sequences > 0) {
    fail(path, "has a mode per sequence: multimodal datasets are not supported");
  }
  if (used != body) {
    fail(path, fmt::format("{} bytes, expected {} for {} sequences and {} document entries", size,
                           kHeaderBytes + used, sequences, entries));
  }
  index.num_sequences_ = static_cast<int64_t>(sequences);
  index.num_document_entries_ = static_cast<int64_t>(entries);
  index.lengths_ = bytes.subspan(kHeaderBytes, sequences * 4);
  index.pointers_ = bytes.subspan(kHeaderBytes + sequences * 4, sequences * 8);
  index.documents_ = bytes.subspan(kHeaderBytes + sequences * 12, entries * 8);
  index.num_tokens_ = bin_bytes / token_bytes(index.dtype_);
  index.check_sequences(bin_bytes, path);
  index.check_documents(path);
  return index;
}

void IndexFile::check_sequences(int64_t bin_bytes, const std::string& path) const {
  // Lengths are below 2^31 and bounded by what is left of the .bin, so `end` cannot overflow.
  int64_t end = 0;
  for (int64_t s = 0; s < num_sequences_; ++s) {
    const int64_t pointer = load<int64_t>(pointers_, s * 8), length = sequence_length(s);
    if (length < 0) fail(path, fmt::format("sequence {} has the length {}", s, length));
    if (pointer != end) {
      fail(path,
           fmt::format("sequence {} begins at byte {}, expected {} (the end of the one before)", s,
                       pointer, end));
    }
    if (length * token_bytes(dtype_) > bin_bytes - end) {
      fail(path, fmt::format("sequence {} ends at byte {}, but the .bin has {}", s,
                             end + length * token_bytes(dtype_), bin_bytes));
    }
    end += length * token_bytes(dtype_);
  }
  if (end != bin_bytes) {
    fail(path,
         fmt::format("the last sequence ends at byte {}, but the .bin has {}", end, bin_bytes));
  }
}

void IndexFile::check_documents(const std::string& path) const {
  int64_t last = 0;
  for (int64_t d = 0; d < num_document_entries_; ++d) {
    const int64_t sequence = document_sequence(d);
    if (d == 0 && sequence != 0) {
      fail(path, fmt::format("the first document begins with sequence {}, expected 0", sequence));
    }
    if (sequence < last || sequence > num_sequences_) {
      fail(path, fmt::format("document entry {} is sequence {}, expected {} to {}", d, sequence,
                             last, num_sequences_));
    }
    last = sequence;
  }
  if (last != num_sequences_) {
    fail(path,
         fmt::format("the documents end with sequence {}, expected {}", last, num_sequences_));
  }
}

int32_t IndexFile::sequence_length(int64_t s) const { return load<int32_t>(lengths_, s * 4); }

int64_t IndexFile::sequence_pointer(int64_t s) const {
  if (s == num_sequences_) return num_tokens_ * token_bytes(dtype_);
  return load<int64_t>(pointers_, s * 8);
}

int64_t IndexFile::document_sequence(int64_t d) const { return load<int64_t>(documents_, d * 8); }

std::string index_header(TokenDtype dtype, int64_t num_sequences, int64_t num_documents) {
  std::string header(kMagic);
  append(header, kVersion);
  append(header, static_cast<uint8_t>(dtype));
  append(header, static_cast<uint64_t>(num_sequences));
  append(header, static_cast<uint64_t>(num_documents + 1));
  return header;
}

}  // namespace halfstep::data
