// The .idx file of Megatron's indexed dataset (docs/data.md): what it says about its .bin, checked
// before anything is believed. All sizes and pointers are 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace halfstep::data {

// Element types of a .bin, with the format's own codes. The format also knows two float types,
// which are no tokens.
enum class TokenDtype : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint16 = 8,
};

int64_t token_bytes(TokenDtype dtype);
std::string_view token_dtype_name(TokenDtype dtype);
// The largest id that the type can hold (at most 2^31 − 1: ids are int32 everywhere else).
int64_t max_token_id(TokenDtype dtype);
// The type that Megatron's own tools choose: uint16 for fewer than 65500 ids, else int32.
TokenDtype token_dtype_for(int64_t vocab_size);

// A validated view of the bytes of an .idx file; they must outlive it.
class IndexFile {
 public:
  // Throws InputError, naming `path`, unless everything fits together: magic, version, type, the
  // counts against the file's size, lengths ≥ 0, each pointer where the sequence before it ends,
  // the last sequence ending with the .bin (bin_bytes), and documents that are monotone and end
  // with the last sequence.
  static IndexFile parse(std::span<const std::byte> bytes, int64_t bin_bytes,
                         const std::string& path);

  TokenDtype dtype() const { return dtype_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_document_entries_ - 1; }
  int64_t num_tokens() const { return num_tokens_; }
  int32_t sequence_length(int64_t s) const;
  // Byte offset of a sequence in the .bin, for s in [0, num_sequences()].
  int64_t sequence_pointer(int64_t s) const;
  // The first sequence of a document, for d in [0, num_documents()].
  int64_t document_sequence(int64_t d) const;

 private:
  IndexFile() = default;
  void check_sequences(int64_t bin_bytes, const std::string& path) const;
  void check_documents(const std::string& path) const;

  std::span<const std::byte> lengths_, pointers_, documents_;
  TokenDtype dtype_ = TokenDtype::kInt32;
  int64_t num_sequences_ = 0, num_document_entries_ = 0, num_tokens_ = 0;
};

// The first 34 bytes of an .idx file.
std::string index_header(TokenDtype dtype, int64_t num_sequences, int64_t num_documents);

}  // namespace halfstep::data
