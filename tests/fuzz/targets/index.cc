// A pair PREFIX.idx, PREFIX.bin (two parts): an accepted .idx describes all of its .bin, and its
// tokens are those of the file.
#include <filesystem>
#include <span>

#include "halfstep/core/test_folder.h"
#include "halfstep/data/indexed_dataset.h"
#include "halfstep/data/verify.h"
#include "target.h"

namespace halfstep::fuzz {
namespace {

using data::IndexFile;

void check_index(const IndexFile& index, const std::string& bin) {
  const auto bin_bytes = static_cast<int64_t>(bin.size());
  const int64_t width = data::token_bytes(index.dtype());
  int64_t end = 0;
  for (int64_t s = 0; s < index.num_sequences(); ++s) {
    check(index.sequence_pointer(s) == end && index.sequence_length(s) >= 0, "sequences are dense");
    end += index.sequence_length(s) * width;
  }
  check(end == bin_bytes && index.num_tokens() * width == end, "sequences end with the .bin");
  check(index.sequence_pointer(index.num_sequences()) == end, "the end is a pointer too");
  int64_t last = 0;
  for (int64_t d = 0; d <= index.num_documents(); ++d) {
    check(index.document_sequence(d) >= last, "documents are monotone");
    last = index.document_sequence(d);
  }
  check(last == index.num_sequences(), "documents end with the last sequence");
}

// Element i of the .bin, decoded on its own.
int64_t token(const std::string& bin, data::TokenDtype dtype, int64_t i) {
  const int64_t width = data::token_bytes(dtype);
  uint64_t bits = 0;
  std::memcpy(&bits, bin.data() + i * width, static_cast<size_t>(width));
  const bool is_signed = dtype != data::TokenDtype::kUint8 && dtype != data::TokenDtype::kUint16;
  const int unused = 64 - 8 * static_cast<int>(width);
  return is_signed ? static_cast<int64_t>(bits << unused) >> unused : static_cast<int64_t>(bits);
}

void check_tokens(const std::vector<std::string>& parts) {
  static const TestFolder folder;
  folder.write("p.idx", parts[0]);
  folder.write("p.bin", parts[1]);
  const data::IndexedDataset dataset(folder / "p");
  int64_t max_id = -1;
  bool good = true;
  for (int64_t i = 0; i < dataset.num_tokens(); ++i) {
    const int64_t id = token(parts[1], dataset.index().dtype(), i);
    good = good && id >= 0 && id <= INT32_MAX;
    max_id = std::max(max_id, id);
  }
  const auto report = accepted([&] { return data::verify(dataset, std::nullopt, std::nullopt); });
  check(report.has_value() == good, "ids that are negative or beyond 31 bits are refused");
  if (!report) return;
  check(report->max_id == max_id, "the largest id is found");
  std::vector<int32_t> all(static_cast<size_t>(dataset.num_tokens()));
  dataset.read(0, all);
  for (size_t i = 0; i < all.size(); ++i) {
    check(all[i] == token(parts[1], dataset.index().dtype(), static_cast<int64_t>(i)), "a token");
  }
  accepted([&] { return data::verify(dataset, max_id, 0); });
}

}  // namespace
}  // namespace halfstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep::fuzz;
  const auto parts = split_parts(text_of(data, size), 2);
  const auto index = accepted([&] {
    return IndexFile::parse(std::as_bytes(std::span(parts[0])),
                            static_cast<int64_t>(parts[1].size()), "p.idx");
  });
  if (index) {
    check_index(*index, parts[1]);
    check_tokens(parts);
  }
  return 0;
}
