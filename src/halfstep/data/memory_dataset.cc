#include "halfstep/data/memory_dataset.h"

#include <algorithm>

#include "halfstep/core/error.h"

namespace halfstep::data {

void MemoryDataset::add_document(std::span<const int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  starts_.push_back(static_cast<int64_t>(tokens_.size()));
}

void MemoryDataset::read(int64_t first, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  check(first >= 0 && count <= num_tokens() - first, "MemoryDataset: read outside the data");
  std::copy_n(tokens_.begin() + first, count, out.begin());
}

}  // namespace halfstep::data
