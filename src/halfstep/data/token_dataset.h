// Tokens as documents, however they are stored (a Megatron .bin/.idx pair, text in memory).
#pragma once

#include <cstdint>
#include <span>

namespace halfstep::data {

class TokenDataset {
 public:
  virtual ~TokenDataset() = default;
  virtual int64_t num_documents() const = 0;
  virtual int64_t num_tokens() const = 0;
  // Tokens before document d, for d in [0, num_documents()]; monotone, last one num_tokens().
  virtual int64_t document_start(int64_t d) const = 0;
  // Copies tokens [first, first + out.size()) of the concatenation of all documents.
  virtual void read(int64_t first, std::span<int32_t> out) const = 0;
  // A 64-bit hash of the content that identifies the data in checkpoints (cheap: sampled).
  virtual uint64_t fingerprint() const = 0;
};

}  // namespace halfstep::data
