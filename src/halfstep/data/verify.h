// What `halfstep data verify` checks beyond what opening a pair does: every token, once.
#pragma once

#include <cstdint>
#include <optional>

#include "halfstep/data/indexed_dataset.h"

namespace halfstep::data {

struct DataReport {
  int64_t documents = 0, empty_documents = 0, sequences = 0, tokens = 0;
  int64_t max_id = -1;
  // Documents that are not empty and end with `eod`; only counted when it is given.
  int64_t documents_with_eod = 0;
};

// Reads the whole .bin in pieces. Throws InputError at a negative id, at an id that is not below
// vocab_size, if the .bin's type cannot hold every id of vocab_size, and if eod is given but some
// non-empty document does not end with it.
DataReport verify(const IndexedDataset& data, std::optional<int64_t> vocab_size,
                  std::optional<int64_t> eod);

}  // namespace halfstep::data
