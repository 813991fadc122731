// Reads a checkpoint a piece at a time, for what is written elsewhere without ever being in memory
// as a whole: `halfstep convert`. Every chunk that is read is verified, as by
// CheckpointReader::load. Memory: one chunk, and one piece while values are made. Not thread-safe.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "halfstep/checkpoint/chunk_reader.h"
#include "halfstep/checkpoint/load_plan.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/slice.h"

namespace halfstep::checkpoint {

class PieceReader {
 public:
  // The reader must outlive this.
  explicit PieceReader(const CheckpointReader& reader);

  // Empty: not stored.
  std::optional<Dtype> dtype(TensorKind kind, std::string_view name) const;
  // Whether the FP32 value of a weight is stored; if not, only its BF16 rounding may be.
  bool has_fp32_value(std::string_view name) const;
  int64_t stored_bytes(TensorKind kind) const;
  // Throws one InputError that lists all of these tensors that are missing, incomplete or of
  // another shape or dtype. What is read below must have passed here.
  void require(std::span<const Slice> whole_tensors) const;

  // The elements of a slice of a stored tensor, with its stored dtype, as they are.
  void read(const Slice& piece, void* out);
  // The same as FP32 values. Of a weight, master or remainder: the parameter's FP32 value, from the
  // master, an FP32 weight, weight and remainder, or else the BF16 weight.
  void read_values(const Slice& piece, float* out);

 private:
  const CheckpointReader& reader_;
  const std::string where_;
  StoredTensors stored_;
  ChunkReader chunks_;
};

}  // namespace halfstep::checkpoint
