#include "halfstep/data/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "halfstep/core/error.h"

namespace halfstep::data {
namespace {

constexpr int64_t kPieceTokens = 1 << 18;

void check_dtype(const IndexedDataset& data, int64_t vocab_size) {
  const TokenDtype dtype = data.index().dtype();
  if (vocab_size - 1 > max_token_id(dtype)) {
    throw InputError(
        fmt::format("{}: {} holds ids up to {}, but the vocabulary has {}", data.name(),
                    token_dtype_name(dtype), max_token_id(dtype), vocab_size),
        "larger ids were cut off when the pair was written; make it again with `halfstep "
        "data build`");
  }
}

void read_all_tokens(const IndexedDataset& data, std::optional<int64_t> vocab_size,
                     DataReport& report) {
  std::vector<int32_t> piece;
  for (int64_t first = 0; first < data.num_tokens(); first += kPieceTokens) {
    piece.resize(std::min(kPieceTokens, data.num_tokens() - first));
    data.read(first, piece);
    const auto largest = std::max_element(piece.begin(), piece.end());
    report.max_id = std::max<int64_t>(report.max_id, *largest);
    if (vocab_size && *largest >= *vocab_size) {
      throw InputError(
          fmt::format("{}: token {} at position {}, expected less than the vocabulary size {}",
                      data.name(), *largest, first + (largest - piece.begin()), *vocab_size),
          "the pair was made with another tokenizer");
    }
  }
}

void count_documents(const IndexedDataset& data, std::optional<int64_t> eod, DataReport& report) {
  int64_t without = -1;
  for (int64_t d = 0; d < data.num_documents(); ++d) {
    const int64_t end = data.document_start(d + 1);
    if (end == data.document_start(d)) {
      ++report.empty_documents;
      continue;
    }
    if (!eod) continue;
    int32_t last = 0;
    data.read(end - 1, {&last, 1});
    if (last == *eod) {
      ++report.documents_with_eod;
    } else if (without < 0) {
      without = d;
    }
  }
  if (without >= 0) {
    throw InputError(
        fmt::format("{}: document {} does not end with the end marker {} ({} of {} do)",
                    data.name(), without, *eod, report.documents_with_eod,
                    report.documents - report.empty_documents),
        "leave --eod out if documents have no end marker");
  }
}

}  // namespace

DataReport verify(const IndexedDataset& data, std::optional<int64_t> vocab_size,
                  std::optional<int64_t> eod) {
  DataReport report{.documents = data.num_documents(),
                    .sequences = data.index().num_sequences(),
                    .tokens = data.num_tokens()};
  if (vocab_size) check_dtype(data, *vocab_size);
  read_all_tokens(data, vocab_size, report);
  count_documents(data, eod, report);
  return report;
}

}  // namespace halfstep::data
