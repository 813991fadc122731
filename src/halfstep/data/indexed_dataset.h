// Megatron's indexed dataset: PREFIX.bin holds the tokens of all documents one after the other,
// PREFIX.idx says where each begins (index_file.h). Both are mapped, nothing is copied at opening;
// opening reads the whole .idx once to validate it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "halfstep/data/index_file.h"
#include "halfstep/data/token_dataset.h"
#include "halfstep/io/mapped_file.h"

namespace halfstep::data {

std::filesystem::path bin_path(const std::string& prefix);
std::filesystem::path idx_path(const std::string& prefix);

class IndexedDataset final : public TokenDataset {
 public:
  // Throws InputError if a file is missing or the pair is inconsistent.
  explicit IndexedDataset(const std::string& prefix);

  std::string name() const override { return prefix_; }
  int64_t num_documents() const override { return index_.num_documents(); }
  int64_t num_tokens() const override { return index_.num_tokens(); }
  int64_t document_start(int64_t d) const override;
  // Throws InputError at an id that is negative or needs more than 31 bits.
  void read(int64_t first, std::span<int32_t> out) const override;

  const IndexFile& index() const { return index_; }
  std::span<const std::byte> bin_bytes() const { return bin_.bytes(); }

 private:
  std::string prefix_;
  io::MappedFile bin_, idx_;
  IndexFile index_;
};

}  // namespace halfstep::data
