// Tokens held in memory: small corpora that are tokenized at start, and tests.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "halfstep/data/token_dataset.h"

namespace halfstep::data {

class MemoryDataset final : public TokenDataset {
 public:
  explicit MemoryDataset(std::string name) : name_(std::move(name)) {}

  void add_document(std::span<const int32_t> tokens);

  std::string name() const override { return name_; }
  int64_t num_documents() const override { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t num_tokens() const override { return starts_.back(); }
  int64_t document_start(int64_t d) const override { return starts_.at(d); }
  void read(int64_t first, std::span<int32_t> out) const override;

 private:
  std::string name_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> starts_{0};
};

}  // namespace halfstep::data
