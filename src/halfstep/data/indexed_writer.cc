#include "halfstep/data/indexed_writer.h"

#include <fmt/core.h>
#include <unistd.h>

#include <limits>

#include "halfstep/core/error.h"

namespace halfstep::data {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

std::filesystem::path spool_path(const std::string& prefix, std::string_view what) {
  return fmt::format("{}.{}.{}.tmp", prefix, what, ::getpid());
}

template <typename T>
void append_as(std::vector<std::byte>& out, int64_t value) {
  const T narrow = static_cast<T>(value);
  const auto* bytes = reinterpret_cast<const std::byte*>(&narrow);
  out.insert(out.end(), bytes, bytes + sizeof narrow);
}

void append_token(std::vector<std::byte>& out, TokenDtype dtype, int32_t token) {
  switch (token_bytes(dtype)) {
    case 1:
      return append_as<uint8_t>(out, token);
    case 2:
      return append_as<uint16_t>(out, token);
    case 4:
      return append_as<int32_t>(out, token);
    default:
      return append_as<int64_t>(out, token);
  }
}

}  // namespace

IndexedWriter::IndexedWriter(const std::string& prefix, TokenDtype dtype)
    : prefix_(prefix),
      dtype_(dtype),
      bin_(bin_path(prefix)),
      lengths_(spool_path(prefix, "lengths")),
      document_ends_(spool_path(prefix, "documents")) {
  buffer_.reserve(kBufferBytes + sizeof(int64_t));
}

void IndexedWriter::add_document(std::span<const int32_t> tokens) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw InputError(fmt::format("document {} has {} tokens, expected at most 2^31 − 1",
                                 num_documents_, tokens.size()),
                     "cut the document into several");
  }
  const int64_t limit = max_token_id(dtype_);
  for (const int32_t token : tokens) {
    if (token < 0 || token > limit) {
      throw InputError(fmt::format("{}: token {} in document {}, expected 0 to {} ({})",
                                   bin_path(prefix_).string(), token, num_documents_, limit,
                                   token_dtype_name(dtype_)),
                       "the vocabulary needs a larger type");
    }
    append_token(buffer_, dtype_, token);
    if (buffer_.size() >= kBufferBytes) flush_tokens();
  }
  add_sequence(static_cast<int64_t>(tokens.size()));
  end_document();
}

void IndexedWriter::append(const IndexedDataset& other) {
  const IndexFile& index = other.index();
  if (index.dtype() != dtype_) {
    throw InputError(fmt::format("{}: tokens are {}, expected {} like those before", other.name(),
                                 token_dtype_name(index.dtype()), token_dtype_name(dtype_)),
                     "only pairs of one type (made with one tokenizer) can be merged");
  }
  flush_tokens();
  bin_.write(other.bin_bytes());
  int64_t sequence = 0;
  for (int64_t d = 0; d < index.num_documents(); ++d) {
    for (; sequence < index.document_sequence(d + 1); ++sequence) {
      add_sequence(index.sequence_length(sequence));
    }
    end_document();
  }
}

void IndexedWriter::finish() {
  flush_tokens();
  io::AtomicFile idx(idx_path(prefix_));
  write_index(idx);
  // An old index beside a new .bin would be a pair that does not fit together.
  std::filesystem::remove(idx_path(prefix_));
  bin_.commit();
  idx.commit();
}

void IndexedWriter::write_index(io::AtomicFile& idx) {
  idx.write(index_header(dtype_, num_sequences_, num_documents_));
  std::vector<std::byte> out;
  lengths_.replay([&](std::span<const int64_t> lengths) {
    out.clear();
    for (const int64_t length : lengths) append_as<int32_t>(out, length);
    idx.write(out);
  });
  int64_t next = 0;
  std::vector<int64_t> pointers;
  lengths_.replay([&](std::span<const int64_t> lengths) {
    pointers.clear();
    next = sequence_pointers(lengths, next, dtype_, pointers);
    idx.write(std::as_bytes(std::span(pointers)));
  });
  const int64_t first_document = 0;
  idx.write(std::as_bytes(std::span(&first_document, 1)));
  document_ends_.replay([&](std::span<const int64_t> ends) { idx.write(std::as_bytes(ends)); });
}

void IndexedWriter::add_sequence(int64_t length) {
  lengths_.append(length);
  ++num_sequences_;
  num_tokens_ += length;
}

void IndexedWriter::end_document() {
  document_ends_.append(num_sequences_);
  ++num_documents_;
}

void IndexedWriter::flush_tokens() {
  bin_.write(buffer_);
  buffer_.clear();
}

int64_t sequence_pointers(std::span<const int64_t> lengths, int64_t first_pointer, TokenDtype dtype,
                          std::vector<int64_t>& pointers) {
  for (const int64_t length : lengths) {
    pointers.push_back(first_pointer);
    first_pointer += length * token_bytes(dtype);
  }
  return first_pointer;
}

}  // namespace halfstep::data
