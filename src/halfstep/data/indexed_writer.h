// Writes PREFIX.bin and PREFIX.idx (indexed_dataset.h). Memory does not grow with the data: lengths
// and document ends wait in unlinked temporary files beside the output until finish().
// Until finish() returns, an older pair of this name stays as it was, except for an instant in
// which only its .bin is there; a writer that is destroyed without finish() leaves nothing behind.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "halfstep/data/index_file.h"
#include "halfstep/data/indexed_dataset.h"
#include "halfstep/data/spool.h"
#include "halfstep/io/file.h"

namespace halfstep::data {

class IndexedWriter {
 public:
  IndexedWriter(const std::string& prefix, TokenDtype dtype);

  // Appends a document of one sequence. Throws InputError at an id that the type cannot hold (which
  // would be stored as another id) and at more than 2^31 − 1 tokens.
  void add_document(std::span<const int32_t> tokens);
  // Appends another pair of the same type, its documents and sequences as they are.
  void append(const IndexedDataset& other);
  void finish();

  int64_t num_documents() const { return num_documents_; }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  void add_sequence(int64_t length);
  void end_document();
  void flush_tokens();
  void write_index(io::AtomicFile& idx);

  std::string prefix_;
  TokenDtype dtype_;
  io::AtomicFile bin_;
  Spool lengths_, document_ends_;
  std::vector<std::byte> buffer_;
  int64_t num_sequences_ = 0, num_documents_ = 0, num_tokens_ = 0;
};

// Appends the byte offsets in the .bin of sequences of these lengths to `pointers`, the first at
// `first_pointer`; returns where the next one would begin. 64 bits throughout.
int64_t sequence_pointers(std::span<const int64_t> lengths, int64_t first_pointer, TokenDtype dtype,
                          std::vector<int64_t>& pointers);

}  // namespace halfstep::data
