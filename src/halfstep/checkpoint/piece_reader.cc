#include "halfstep/checkpoint/piece_reader.h"

#include <utility>
#include <vector>

#include "halfstep/checkpoint/load_slices.h"

namespace halfstep::checkpoint {
namespace {

MutableSlice with_memory(const Slice& slice, void* data) {
  MutableSlice out;
  static_cast<Slice&>(out) = slice;
  out.data = data;
  return out;
}

}  // namespace

PieceReader::PieceReader(const CheckpointReader& reader)
    : reader_(reader),
      where_(reader.directory().string()),
      stored_(reader.manifest()),
      chunks_(reader.directory(), reader.manifest()) {}

std::optional<Dtype> PieceReader::dtype(TensorKind kind, std::string_view name) const {
  const auto& slices = stored_.find(kind, name);
  if (slices.empty()) return std::nullopt;
  return slices.front()->dtype;
}

bool PieceReader::has_fp32_value(std::string_view name) const {
  return value_source(stored_, name, /*allow_lossy=*/false) != ValueSource::kNone;
}

int64_t PieceReader::stored_bytes(TensorKind kind) const {
  int64_t bytes = 0;
  for (const StoredSlice& slice : reader_.manifest().slices) {
    if (slice.kind == kind) bytes += slice.bytes();
  }
  return bytes;
}

void PieceReader::require(std::span<const Slice> whole_tensors) const {
  std::vector<MutableSlice> requests;
  for (const Slice& tensor : whole_tensors) requests.push_back(with_memory(tensor, nullptr));
  plan_load(stored_, requests, {.allow_unrequested = true}, where_);
}

void PieceReader::read(const Slice& piece, void* out) {
  const MutableSlice request = with_memory(piece, out);
  LoadReport unused;
  load_slice({&request, PlannedSlice::How::kCopy, ValueSource::kNone}, stored_, chunks_, where_,
             unused);
}

void PieceReader::read_values(const Slice& piece, float* out) {
  MutableSlice request = with_memory(piece, out);
  request.dtype = Dtype::kF32;
  PlannedSlice planned{&request, PlannedSlice::How::kConvert, ValueSource::kNone};
  if (is_weight_kind(piece.kind)) {
    planned.how = PlannedSlice::How::kFromValue;
    planned.value = value_source(stored_, piece.name, /*allow_lossy=*/true);
  }
  LoadReport unused;
  load_slice(planned, stored_, chunks_, where_, unused);
}

}  // namespace halfstep::checkpoint
