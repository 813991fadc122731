// Tokens as documents, however they are stored (a Megatron .bin/.idx pair, text in memory).
// Immutable after construction: every method may be called from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace halfstep::data {

class TokenDataset {
 public:
  virtual ~TokenDataset() = default;
  // What messages call it: a path, or what it was made of.
  virtual std::string name() const { return "data"; }
  virtual int64_t num_documents() const = 0;
  virtual int64_t num_tokens() const = 0;
  // Tokens before document d, for d in [0, num_documents()]; monotone, last one num_tokens().
  virtual int64_t document_start(int64_t d) const = 0;
  // Copies tokens [first, first + out.size()) of the concatenation of all documents.
  virtual void read(int64_t first, std::span<int32_t> out) const = 0;
  // A 64-bit hash of the content that identifies the data in checkpoints (cheap: sampled).
  virtual uint64_t fingerprint() const;
};

// What fingerprint() is unless overridden: the counts, 64 evenly spaced document starts and the
// tokens of 64 evenly spaced blocks of 64. Depends on the tokens and documents, not on how they are
// stored. An edit outside the samples that keeps all counts is not seen.
uint64_t sampled_fingerprint(const TokenDataset& data);

}  // namespace halfstep::data
