#include "halfstep/checkpoint/load_slices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "halfstep/core/error.h"
#include "halfstep/kernels/vector_ops.h"

namespace halfstep::checkpoint {
namespace {

// Elements converted at a time: 4 MiB of FP32.
constexpr int64_t kPieceElements = int64_t{1} << 20;

void copy_from_stored(const StoredTensors::Slices& stored, const Slice& request,
                      ChunkReader& chunks, void* out) {
  const int64_t width = dtype_bytes(request.dtype);
  for (const StoredSlice* slice : stored) {
    for_each_shared_run(*slice, request, [&](const SharedRun& run) {
      chunks.read(*slice, run.a_offset, run.count,
                  static_cast<std::byte*>(out) + run.b_offset * width);
      return true;
    });
  }
}

bool is_unjoinable(uint16_t weight, int16_t remainder) {
  return ((weight & 0x7FFF) == 0) & (remainder < 0);
}

// A fixed number of elements and no way out: a loop that becomes vector instructions, as all of a
// model passes through it on every load.
constexpr int64_t kBlockElements = 1024;
bool has_unjoinable(const uint16_t* weight, const int16_t* remainder) {
  int found = 0;
  for (int64_t i = 0; i < kBlockElements; ++i) found |= is_unjoinable(weight[i], remainder[i]);
  return found != 0;
}

void throw_if_unjoinable(const uint16_t* weight, const int16_t* remainder, const Slice& slice,
                         const std::string& where) {
  int64_t good = 0;
  while (slice.numel - good >= kBlockElements && !has_unjoinable(weight + good, remainder + good)) {
    good += kBlockElements;
  }
  for (int64_t i = good; i < slice.numel; ++i) {
    if (is_unjoinable(weight[i], remainder[i])) {
      throw InputError(
          fmt::format("{}: '{}', element {}: a weight of 0 with the remainder {} is no number",
                      where, slice.name, slice.start + i, remainder[i]),
          "whatever wrote the weight has to write the remainder too (docs/numerics.md)");
    }
  }
}

// Makes FP32 values out of stored tensors, a piece at a time.
class ValueReader {
 public:
  ValueReader(const StoredTensors& stored, ChunkReader& chunks, const std::string& where)
      : stored_(stored), chunks_(chunks), where_(where) {}

  // The values of a piece of a stored tensor of this kind, at most kPieceElements.
  const float* stored_values(const Slice& piece, TensorKind kind) {
    const auto& slices = stored_.find(kind, piece.name);
    const Dtype dtype = slices[0]->dtype;
    values_.resize(static_cast<size_t>(piece.numel));
    if (dtype == Dtype::kF32) {
      copy_from_stored(slices, with(piece, kind, dtype), chunks_, values_.data());
    } else {
      raw_.resize(static_cast<size_t>(piece.numel));
      copy_from_stored(slices, with(piece, kind, dtype), chunks_, raw_.data());
      kernels::convert(values_.data(), Dtype::kF32, raw_.data(), dtype, piece.numel,
                       Rounding::kNearest, {});
    }
    return values_.data();
  }

  const float* joined_values(const Slice& piece) {
    const auto n = static_cast<size_t>(piece.numel);
    values_.resize(n);
    raw_.resize(n);
    remainder_.resize(n);
    copy_from_stored(stored_.find(TensorKind::kWeight, piece.name),
                     with(piece, TensorKind::kWeight, Dtype::kBF16), chunks_, raw_.data());
    copy_from_stored(stored_.find(TensorKind::kRemainder, piece.name),
                     with(piece, TensorKind::kRemainder, Dtype::kI16), chunks_, remainder_.data());
    throw_if_unjoinable(raw_.data(), remainder_.data(), piece, where_);
    kernels::join_master(values_.data(), raw_.data(), remainder_.data(), piece.numel);
    return values_.data();
  }

  const float* values(const PlannedSlice& planned, const Slice& piece) {
    if (planned.how == PlannedSlice::How::kConvert) return stored_values(piece, piece.kind);
    switch (planned.value) {
      case ValueSource::kMaster:
        return stored_values(piece, TensorKind::kMaster);
      case ValueSource::kSplit:
        return joined_values(piece);
      case ValueSource::kFp32Weight:
      case ValueSource::kBf16Weight:
        return stored_values(piece, TensorKind::kWeight);
      case ValueSource::kNone:
        break;
    }
    throw InternalError("checkpoint: a conversion without a source");
  }

 private:
  static Slice with(Slice piece, TensorKind kind, Dtype dtype) {
    piece.kind = kind;
    piece.dtype = dtype;
    return piece;
  }

  const StoredTensors& stored_;
  ChunkReader& chunks_;
  const std::string& where_;
  std::vector<float> values_;
  std::vector<uint16_t> raw_;
  std::vector<int16_t> remainder_;
};

// Stores values in the piece's dtype; returns the ties of a split.
int64_t store_values(const float* values, const Slice& piece, void* out, const std::string& where) {
  if (piece.dtype == Dtype::kI16) {
    std::vector<uint16_t> weight(static_cast<size_t>(piece.numel));  // RNE again: as stored
    return kernels::split_master(weight.data(), static_cast<int16_t*>(out), values, piece.numel);
  }
  if (piece.dtype == Dtype::kUE6M10) {
    check_ue6m10_values({values, static_cast<size_t>(piece.numel)}, piece.kind, piece.name,
                        piece.start, where);
  }
  kernels::convert(out, piece.dtype, values, Dtype::kF32, piece.numel, Rounding::kNearest, {});
  return 0;
}

}  // namespace

void load_slice(const PlannedSlice& planned, const StoredTensors& stored, ChunkReader& chunks,
                const std::string& where, LoadReport& report) {
  const MutableSlice& request = *planned.request;
  if (planned.how == PlannedSlice::How::kCopy) {
    copy_from_stored(stored.find(request.kind, request.name), request, chunks, request.data);
    return;
  }
  ValueReader reader(stored, chunks, where);
  for (int64_t done = 0; done < request.numel; done += kPieceElements) {
    Slice piece = request;
    piece.start += done;
    piece.numel = std::min(kPieceElements, request.numel - done);
    void* out = static_cast<std::byte*>(request.data) + done * dtype_bytes(request.dtype);
    report.split_ties += store_values(reader.values(planned, piece), piece, out, where);
  }
}

void check_split_weights(std::span<const MutableSlice> slices, const std::string& where) {
  const auto place = [](const Slice& s) {
    return std::tuple(std::string_view(s.name), s.box.row0, s.box.row1, s.box.col0, s.box.col1,
                      s.start, s.numel);
  };
  std::map<decltype(place(slices[0])), const MutableSlice*> weights;
  for (const MutableSlice& slice : slices) {
    if (slice.kind == TensorKind::kWeight && slice.dtype == Dtype::kBF16) {
      weights[place(slice)] = &slice;
    }
  }
  for (const MutableSlice& slice : slices) {
    if (slice.kind != TensorKind::kRemainder) continue;
    const auto it = weights.find(place(slice));
    if (it == weights.end()) continue;
    throw_if_unjoinable(static_cast<const uint16_t*>(it->second->data),
                        static_cast<const int16_t*>(slice.data), slice, where);
  }
}

void check_ue6m10_values(std::span<const float> values, TensorKind kind, std::string_view name,
                         int64_t first, const std::string& where) {
  const auto negative = std::find_if(values.begin(), values.end(), [](float v) { return v < 0; });
  if (negative == values.end()) return;
  throw InputError(
      fmt::format("{}{}{} of '{}', element {}: {} has no ue6m10", where, where.empty() ? "" : ": ",
                  tensor_kind_name(kind), name, first + (negative - values.begin()), *negative),
      "exp_avg_sq is never negative: the checkpoint is damaged");
}

}  // namespace halfstep::checkpoint
