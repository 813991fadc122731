#include "halfstep/checkpoint/slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace halfstep::checkpoint {
namespace {

constexpr std::array<std::string_view, 6> kKindNames{"weight",  "remainder",  "master",
                                                     "exp_avg", "exp_avg_sq", "max_exp_avg_sq"};

// rows × cols of a shape; nullopt if a size is negative or the product no 64-bit number.
std::optional<std::pair<int64_t, int64_t>> matrix_of(const std::vector<int64_t>& shape) {
  int64_t rows = 1, cols = 1, numel = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t& side = i == 0 && shape.size() > 1 ? rows : cols;
    if (shape[i] < 0 || __builtin_mul_overflow(side, shape[i], &side)) return std::nullopt;
  }
  if (__builtin_mul_overflow(rows, cols, &numel)) return std::nullopt;
  return std::pair(rows, cols);
}

// A decimal number without sign or leading zeros, so that every address has one spelling.
std::optional<int64_t> parse_index(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text[0] == '-' || error != std::errc() || end != text.data() + text.size() ||
      (text.size() > 1 && text[0] == '0')) {
    return std::nullopt;
  }
  return value;
}

std::optional<SliceName::Interval> parse_interval(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == text.npos) return std::nullopt;
  const auto begin = parse_index(text.substr(0, colon));
  const auto end = parse_index(text.substr(colon + 1));
  if (!begin || !end || *begin > *end) return std::nullopt;
  return SliceName::Interval{*begin, *end};
}

bool valid_name(std::string_view name) {
  return !name.empty() && name.find_first_of("@+/") == name.npos;
}

// The rows of its parameter in which a slice has elements, half-open. `slice` is not empty.
std::pair<int64_t, int64_t> occupied_rows(const Slice& slice) {
  const int64_t cols = slice.box.cols();
  return {slice.box.row0 + slice.start / cols,
          slice.box.row0 + (slice.start + slice.numel - 1) / cols + 1};
}

}  // namespace

std::string_view tensor_kind_name(TensorKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::optional<TensorKind> parse_tensor_kind(std::string_view name) {
  const auto it = std::find(kKindNames.begin(), kKindNames.end(), name);
  if (it == kKindNames.end()) return std::nullopt;
  return static_cast<TensorKind>(it - kKindNames.begin());
}

bool is_weight_kind(TensorKind kind) {
  return kind == TensorKind::kWeight || kind == TensorKind::kMaster ||
         kind == TensorKind::kRemainder;
}

Box whole_box(const std::vector<int64_t>& shape) {
  const auto [rows, cols] = matrix_of(shape).value_or(std::pair<int64_t, int64_t>{0, 0});
  return {0, rows, 0, cols};
}

Slice whole_slice(TensorKind kind, std::string name, std::vector<int64_t> shape, Dtype dtype) {
  const Box box = whole_box(shape);
  return {kind, std::move(name), std::move(shape), box, 0, box.numel(), dtype};
}

std::string format_slice_name(const Slice& slice) {
  std::string text = fmt::format("{}/{}", tensor_kind_name(slice.kind), slice.name);
  if (slice.box != whole_box(slice.shape)) {
    text += '@';
    if (slice.shape.size() > 1) text += fmt::format("{}:{},", slice.box.row0, slice.box.row1);
    text += fmt::format("{}:{}", slice.box.col0, slice.box.col1);
  }
  if (!slice.whole_range()) text += fmt::format("+{}", slice.start);
  return text;
}

std::optional<SliceName> parse_slice_name(std::string_view text) {
  SliceName out;
  const size_t slash = text.find('/');
  if (slash == text.npos) return std::nullopt;
  const auto kind = parse_tensor_kind(text.substr(0, slash));
  if (!kind) return std::nullopt;
  out.kind = *kind;
  text.remove_prefix(slash + 1);

  if (const size_t plus = text.find('+'); plus != text.npos) {
    out.start = parse_index(text.substr(plus + 1));
    if (!out.start) return std::nullopt;
    text = text.substr(0, plus);
  }
  if (const size_t at = text.find('@'); at != text.npos) {
    std::string_view box = text.substr(at + 1);
    if (const size_t comma = box.find(','); comma != box.npos) {
      const auto rows = parse_interval(box.substr(0, comma));
      if (!rows) return std::nullopt;
      out.box.push_back(*rows);
      box.remove_prefix(comma + 1);
    }
    const auto cols = parse_interval(box);
    if (!cols) return std::nullopt;
    out.box.push_back(*cols);
    text = text.substr(0, at);
  }
  if (!valid_name(text)) return std::nullopt;
  out.name = text;
  return out;
}

std::string slice_fault(const Slice& slice) {
  if (!valid_name(slice.name)) return "the name is empty or has one of @ + /";
  const auto matrix = matrix_of(slice.shape);
  if (!matrix) return "the shape has a negative size or too many elements";
  const auto [rows, cols] = *matrix;
  const Box& box = slice.box;
  if (box.row0 < 0 || box.row1 < box.row0 || box.row1 > rows || box.col0 < 0 ||
      box.col1 < box.col0 || box.col1 > cols || (slice.shape.size() < 2 && box.rows() != 1)) {
    return fmt::format("the box {}:{},{}:{} is outside {} x {}", box.row0, box.row1, box.col0,
                       box.col1, rows, cols);
  }
  if (slice.start < 0 || slice.numel < 0 || slice.start > box.numel() - slice.numel) {
    return fmt::format("the range of {} elements from {} is outside the box of {}", slice.numel,
                       slice.start, box.numel());
  }
  if (slice.numel > INT64_MAX / dtype_bytes(slice.dtype)) return "more than 2^63 bytes";
  return {};
}

void for_each_shared_run(const Slice& a, const Slice& b,
                         const std::function<bool(const SharedRun&)>& visit) {
  if (a.numel == 0 || b.numel == 0) return;
  // Rows in which both have elements, not all of the boxes': a box may have 2^60 rows.
  const auto [a_row0, a_row1] = occupied_rows(a);
  const auto [b_row0, b_row1] = occupied_rows(b);
  const Box shared{std::max(a_row0, b_row0), std::min(a_row1, b_row1),
                   std::max(a.box.col0, b.box.col0), std::min(a.box.col1, b.box.col1)};
  if (shared.row0 >= shared.row1 || shared.col0 >= shared.col1) return;
  // Where both boxes are exactly as wide as what they share, its rows follow each other in both,
  // and the whole of it is one run; otherwise each row is one.
  const bool one_run = a.box.cols() == shared.cols() && b.box.cols() == shared.cols();
  const int64_t run = one_run ? shared.numel() : shared.cols();
  const auto offset_in = [&](const Slice& slice, int64_t row) {
    return (row - slice.box.row0) * slice.box.cols() + (shared.col0 - slice.box.col0) - slice.start;
  };
  for (int64_t row = shared.row0; row < shared.row1; row += one_run ? shared.rows() : 1) {
    const int64_t a_offset = offset_in(a, row);
    const int64_t b_offset = offset_in(b, row);
    // Cut to the two ranges.
    const int64_t first = std::max({int64_t{0}, -a_offset, -b_offset});
    const int64_t last = std::min({run, a.numel - a_offset, b.numel - b_offset});
    if (first < last && !visit({a_offset + first, b_offset + first, last - first})) return;
  }
}

bool slices_overlap(const Slice& a, const Slice& b) {
  bool overlap = false;
  for_each_shared_run(a, b, [&](const SharedRun&) {
    overlap = true;
    return false;
  });
  return overlap;
}

}  // namespace halfstep::checkpoint
