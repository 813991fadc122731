// Slices and their names. The first byte chooses: a name as text (one spelling each), two slices of
// a small parameter (compared element by element with plain loops), or two slices of any numbers
// (no overflow, and an answer in a time that does not grow with them).
#include <fmt/format.h>

#include <set>

#include "halfstep/checkpoint/slice.h"
#include "target.h"

namespace halfstep::fuzz {
namespace {

using checkpoint::Box;
using checkpoint::Slice;
using checkpoint::SliceName;

void check_name(std::string_view text) {
  const std::optional<SliceName> name = checkpoint::parse_slice_name(text);
  if (!name) return;
  std::string again = fmt::format("{}/{}", checkpoint::tensor_kind_name(name->kind), name->name);
  for (size_t i = 0; i < name->box.size(); ++i) {
    const auto& [begin, end] = name->box[i];
    check(begin >= 0 && begin <= end, "an interval is not backwards");
    again += fmt::format("{}{}:{}", i == 0 ? '@' : ',', begin, end);
  }
  if (name->start) again += fmt::format("+{}", *name->start);
  check(again == text, "a name has one spelling");
}

// The flat index of each element of a slice in its parameter, in order.
std::vector<int64_t> elements(const Slice& slice) {
  const int64_t cols = checkpoint::whole_box(slice.shape).cols();
  std::vector<int64_t> all, out;
  for (int64_t r = slice.box.row0; r < slice.box.row1; ++r) {
    for (int64_t c = slice.box.col0; c < slice.box.col1; ++c) all.push_back(r * cols + c);
  }
  out.assign(all.begin() + slice.start, all.begin() + slice.start + slice.numel);
  return out;
}

void check_shared_runs(const Slice& a, const Slice& b) {
  const std::vector<int64_t> in_a = elements(a), in_b = elements(b);
  const std::set<int64_t> set_b(in_b.begin(), in_b.end());
  size_t expected = 0, found = 0;
  for (const int64_t element : in_a) expected += set_b.count(element);
  int64_t a_end = 0, b_end = 0;
  checkpoint::for_each_shared_run(a, b, [&](const checkpoint::SharedRun& run) {
    check(run.count > 0 && run.a_offset >= a_end && run.b_offset >= b_end, "runs ascend");
    a_end = run.a_offset + run.count;
    b_end = run.b_offset + run.count;
    for (int64_t i = 0; i < run.count; ++i) {
      check(in_a.at(static_cast<size_t>(run.a_offset + i)) ==
                in_b.at(static_cast<size_t>(run.b_offset + i)),
            "a run is of the same elements in both");
    }
    found += static_cast<size_t>(run.count);
    return true;
  });
  check(found == expected, "every shared element is in a run");
  check(checkpoint::slices_overlap(a, b) == (expected > 0), "slices overlap if they share any");
}

void check_written_name(const Slice& slice) {
  const auto name = checkpoint::parse_slice_name(checkpoint::format_slice_name(slice));
  check(name.has_value() && name->kind == slice.kind && name->name == slice.name,
        "what is written is read");
  check(name->box.empty() == (slice.box == checkpoint::whole_box(slice.shape)),
        "a box is left out when whole");
  check(name->start.has_value() != slice.whole_range(), "a start is left out when whole");
  check(name->start.value_or(slice.start) == slice.start, "a start is read");
}

Slice small_slice(Numbers& numbers, const std::vector<int64_t>& shape) {
  return {.kind = static_cast<checkpoint::TensorKind>(numbers.below(6)),
          .name = "w",
          .shape = shape,
          .box = {numbers.below(5), numbers.below(9), numbers.below(9), numbers.below(9)},
          .start = numbers.below(64),
          .numel = numbers.below(64),
          .dtype = Dtype::kBF16};
}

void check_small(Numbers& numbers) {
  std::vector<int64_t> shape;
  for (int64_t i = numbers.below(4); i > 0; --i) shape.push_back(numbers.below(6));
  const Slice a = small_slice(numbers, shape), b = small_slice(numbers, shape);
  for (const Slice& slice : {a, b}) {
    if (checkpoint::slice_fault(slice).empty()) check_written_name(slice);
  }
  if (checkpoint::slice_fault(a).empty() && checkpoint::slice_fault(b).empty()) {
    check_shared_runs(a, b);
  }
}

Slice any_slice(Numbers& numbers, const std::vector<int64_t>& shape) {
  const auto number = [&] { return numbers.take<int64_t>(); };
  return {.kind = checkpoint::TensorKind::kMaster,
          .name = "w",
          .shape = shape,
          .box = {number(), number(), number(), number()},
          .start = number(),
          .numel = number(),
          .dtype = Dtype::kF32};
}

void check_any(Numbers& numbers) {
  std::vector<int64_t> shape;
  for (int64_t i = numbers.below(4); i > 0; --i) shape.push_back(numbers.take<int64_t>());
  const Slice a = any_slice(numbers, shape), b = any_slice(numbers, shape);
  if (!checkpoint::slice_fault(a).empty() || !checkpoint::slice_fault(b).empty()) return;
  check_written_name(a);
  check(checkpoint::slices_overlap(a, b) == checkpoint::slices_overlap(b, a), "symmetric");
}

}  // namespace
}  // namespace halfstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep::fuzz;
  Numbers numbers(text_of(data, size));
  switch (numbers.below(3)) {
    case 0:
      check_name(numbers.rest());
      break;
    case 1:
      check_small(numbers);
      break;
    default:
      check_any(numbers);
  }
  return 0;
}
