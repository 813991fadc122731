#include "halfstep/data/indexed_dataset.h"

#include <fmt/core.h>

#include <cstring>
#include <limits>

#include "halfstep/core/error.h"

namespace halfstep::data {
namespace {

io::MappedFile map(const std::string& prefix, const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    const bool has_suffix = prefix.ends_with(".bin") || prefix.ends_with(".idx");
    throw InputError(fmt::format("no file '{}'", path.string()),
                     has_suffix
                         ? "give the prefix without .bin or .idx"
                         : "make the pair PREFIX.bin, PREFIX.idx with `halfstep data build`");
  }
  return io::MappedFile(path);
}

// Copies tokens as int32 from any type. False at an id that is no int32 ≥ 0; *bad is its place.
template <typename T>
bool widen(const std::byte* source, std::span<int32_t> out, size_t* bad) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, source + i * sizeof(T), sizeof value);
    if constexpr (std::is_signed_v<T>) {
      if (value < 0 || static_cast<int64_t>(value) > std::numeric_limits<int32_t>::max()) {
        *bad = i;
        return false;
      }
    }
    out[i] = static_cast<int32_t>(value);
  }
  return true;
}

bool widen(TokenDtype dtype, const std::byte* source, std::span<int32_t> out, size_t* bad) {
  switch (dtype) {
    case TokenDtype::kUint8:
      return widen<uint8_t>(source, out, bad);
    case TokenDtype::kInt8:
      return widen<int8_t>(source, out, bad);
    case TokenDtype::kInt16:
      return widen<int16_t>(source, out, bad);
    case TokenDtype::kInt32:
      return widen<int32_t>(source, out, bad);
    case TokenDtype::kInt64:
      return widen<int64_t>(source, out, bad);
    case TokenDtype::kUint16:
      return widen<uint16_t>(source, out, bad);
  }
  throw InternalError("widen: unknown type");
}

}  // namespace

std::filesystem::path bin_path(const std::string& prefix) { return prefix + ".bin"; }
std::filesystem::path idx_path(const std::string& prefix) { return prefix + ".idx"; }

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(prefix),
      bin_(map(prefix, bin_path(prefix))),
      idx_(map(prefix, idx_path(prefix))),
      index_(IndexFile::parse(idx_.bytes(), static_cast<int64_t>(bin_.bytes().size()),
                              idx_.path().string())) {}

int64_t IndexedDataset::document_start(int64_t d) const {
  return index_.sequence_pointer(index_.document_sequence(d)) / token_bytes(index_.dtype());
}

void IndexedDataset::read(int64_t first, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  check(first >= 0 && count <= num_tokens() - first, "IndexedDataset: read outside the data");
  const std::byte* source = bin_.bytes().data() + first * token_bytes(index_.dtype());
  size_t bad = 0;
  if (!widen(index_.dtype(), source, out, &bad)) {
    throw InputError(fmt::format("{}: the token at position {} is negative or above 2^31 − 1",
                                 bin_.path().string(), first + static_cast<int64_t>(bad)),
                     "the .bin is damaged, or its .idx names another type");
  }
}

}  // namespace halfstep::data
