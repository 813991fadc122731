// Which elements of which parameter: the address of everything in a checkpoint
// (docs/checkpoint-format.md). It names the unsharded parameter only, never a rank or a bucket, so
// what one layout wrote any other can read. Pure functions over data; no files here.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/core/dtype.h"

namespace halfstep::checkpoint {

enum class TensorKind : uint8_t {
  kWeight,
  kRemainder,
  kMaster,
  kExpAvg,
  kExpAvgSq,
  kMaxExpAvgSq,
};
std::string_view tensor_kind_name(TensorKind kind);  // "weight", …, "max_exp_avg_sq"
std::optional<TensorKind> parse_tensor_kind(std::string_view name);
// What a parameter's value is made of; the others are the optimizer's state.
bool is_weight_kind(TensorKind kind);

// A rectangle of a parameter seen as a matrix of rows × cols: shape [n] is 1 × n, and shape
// [a, b, c, …] is a × (b·c·…). Half-open: rows [row0, row1), columns [col0, col1).
struct Box {
  int64_t row0 = 0, row1 = 0, col0 = 0, col1 = 0;

  int64_t rows() const { return row1 - row0; }
  int64_t cols() const { return col1 - col0; }
  int64_t numel() const { return rows() * cols(); }
  friend bool operator==(const Box&, const Box&) = default;
};
Box whole_box(const std::vector<int64_t>& shape);

// The elements [start, start + numel) of a box in row-major order, of one kind of tensor of one
// parameter. A DP shard of a TP slice is a range in a box.
struct Slice {
  TensorKind kind = TensorKind::kWeight;
  std::string name;            // of the parameter
  std::vector<int64_t> shape;  // of the whole, unsharded parameter
  Box box;
  int64_t start = 0;
  int64_t numel = 0;
  Dtype dtype = Dtype::kF32;

  int64_t bytes() const { return numel * dtype_bytes(dtype); }
  bool whole_range() const { return start == 0 && numel == box.numel(); }
  friend bool operator==(const Slice&, const Slice&) = default;
};

// The whole parameter.
Slice whole_slice(TensorKind kind, std::string name, std::vector<int64_t> shape, Dtype dtype);

// A slice with the caller's memory: numel elements of dtype, contiguous, any alignment.
struct TensorSlice : Slice {
  const void* data = nullptr;  // read by a save
  // Instead of data, for elements that are nowhere in memory as a whole (a conversion): fills `out`
  // with their bytes from byte `first` on. A save asks for each byte once, in ascending order, on
  // the thread that called it.
  std::function<void(int64_t first, std::span<std::byte> out)> produce = nullptr;
};
struct MutableSlice : Slice {
  void* data = nullptr;  // written by a load
};

// The name of a slice in a shard: KIND/NAME@r0:r1,c0:c1+start, the box and the start each left out
// when whole; one interval for a parameter of one dimension.
std::string format_slice_name(const Slice& slice);

// The parts of such a name; what is not in it is empty. nullopt if it is not of that form.
struct SliceName {
  struct Interval {
    int64_t begin = 0, end = 0;
    friend bool operator==(const Interval&, const Interval&) = default;
  };
  TensorKind kind = TensorKind::kWeight;
  std::string name;
  std::vector<Interval> box;  // one or two intervals, or none for the whole parameter
  std::optional<int64_t> start;
  friend bool operator==(const SliceName&, const SliceName&) = default;
};
std::optional<SliceName> parse_slice_name(std::string_view text);

// What is wrong with a slice (a box outside its shape, a range outside its box, a name with @, +
// or a slash, overflow), or empty.
std::string slice_fault(const Slice& slice);

// A run of elements that two slices of the same parameter share: count elements from a_offset in
// the one and b_offset in the other.
struct SharedRun {
  int64_t a_offset = 0, b_offset = 0, count = 0;
};
// Calls `visit` for each run, offsets ascending in both; ends early when it returns false.
void for_each_shared_run(const Slice& a, const Slice& b,
                         const std::function<bool(const SharedRun&)>& visit);
bool slices_overlap(const Slice& a, const Slice& b);

}  // namespace halfstep::checkpoint
