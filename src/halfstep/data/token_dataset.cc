#include "halfstep/data/token_dataset.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "halfstep/core/hash.h"

namespace halfstep::data {
namespace {

constexpr int64_t kSamples = 64;
constexpr int64_t kBlock = 64;

// Little-endian bytes, so that the hash is the same on every machine.
uint64_t add(uint64_t hash, uint64_t value) {
  char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return fnv1a({bytes, sizeof bytes}, hash);
}

// The s-th of kSamples positions spread over [0, last], both ends included.
int64_t spread(int64_t s, int64_t last) {
  return static_cast<int64_t>(static_cast<__int128>(last) * s / (kSamples - 1));
}

}  // namespace

uint64_t TokenDataset::fingerprint() const { return sampled_fingerprint(*this); }

uint64_t sampled_fingerprint(const TokenDataset& data) {
  uint64_t hash = fnv1a("halfstep tokens");
  hash = add(hash, data.num_documents());
  hash = add(hash, data.num_tokens());
  const int64_t block = std::min(kBlock, data.num_tokens());
  std::vector<int32_t> tokens(block);
  for (int64_t s = 0; s < kSamples; ++s) {
    hash = add(hash, data.document_start(spread(s, data.num_documents())));
    data.read(spread(s, data.num_tokens() - block), tokens);
    for (const int32_t token : tokens) hash = add(hash, static_cast<uint32_t>(token));
  }
  return hash;
}

}  // namespace halfstep::data
