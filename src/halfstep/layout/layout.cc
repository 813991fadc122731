#include "halfstep/layout/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <unordered_set>

#include "halfstep/core/error.h"

namespace halfstep::layout {
namespace {

constexpr StorageFormat kFp32Format{.weight = Dtype::kF32,
                                    .gradient = Dtype::kF32,
                                    .master = MasterMode::kNone,
                                    .exp_avg = Dtype::kF32,
                                    .exp_avg_sq = Dtype::kF32};

// No class needs more, so element counts up to this keep every byte count in 64 bits.
constexpr int64_t kMaxBytesPerElement = 4 * int64_t{kMemoryClasses.size()};
constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / kMaxBytesPerElement;

int64_t checked_numel(const arch::Parameter& parameter) {
  const auto fail = [&](const char* why) {
    throw UsageError(fmt::format("layout: parameter '{}' has shape [{}]: {}", parameter.name,
                                 fmt::join(parameter.shape, ", "), why));
  };
  if (parameter.shape.empty() || parameter.shape.size() > 2) {
    fail("expected one or two dimensions");
  }
  int64_t numel = 1;
  for (const int64_t size : parameter.shape) {
    if (size <= 0) fail("expected positive sizes");
    if (size > kMaxElements / numel) fail("more bytes than 64 bits can count");
    numel *= size;
  }
  return numel;
}

// `total` is the number of elements in all arenas.
void append(Arena& arena, int64_t& total, int64_t parameter, int64_t numel) {
  const int64_t padded = (numel + kAlignment - 1) / kAlignment * kAlignment;
  if (padded > kMaxElements - total) {
    throw UsageError("layout: the model has more bytes than 64 bits can count");
  }
  total += padded;
  arena.placements.push_back(
      {.parameter = parameter, .offset = arena.num_elements, .numel = numel});
  arena.num_elements += padded;
  arena.num_parameters += numel;
}

void expect_dtype(const char* what, Dtype got, std::initializer_list<Dtype> allowed) {
  std::string names;
  for (const Dtype d : allowed) {
    if (d == got) return;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", dtype_name(d));
  }
  throw UsageError(
      fmt::format("layout: {} cannot be {}; expected one of: {}", what, dtype_name(got), names));
}

}  // namespace

std::string_view memory_class_name(MemoryClass c) {
  switch (c) {
    case MemoryClass::kWeight:
      return "weights";
    case MemoryClass::kGradient:
      return "gradients";
    case MemoryClass::kMaster:
      return "master";
    case MemoryClass::kExpAvg:
      return "exp_avg";
    case MemoryClass::kExpAvgSq:
      return "exp_avg_sq";
    case MemoryClass::kMaxExpAvgSq:
      return "max_exp_avg_sq";
  }
  return "?";
}

Dtype StorageFormat::dtype(MemoryClass c) const {
  switch (c) {
    case MemoryClass::kWeight:
      return weight;
    case MemoryClass::kGradient:
      return gradient;
    case MemoryClass::kMaster:
      return master == MasterMode::kSplit ? Dtype::kI16 : Dtype::kF32;
    case MemoryClass::kExpAvg:
      return exp_avg;
    case MemoryClass::kExpAvgSq:
      return exp_avg_sq;
    case MemoryClass::kMaxExpAvgSq:
      return exp_avg_sq;
  }
  return Dtype::kF32;
}

int64_t StorageFormat::bytes_per_element(MemoryClass c) const {
  if (c == MemoryClass::kMaster && master == MasterMode::kNone) return 0;
  if (c == MemoryClass::kMaxExpAvgSq && !amsgrad) return 0;
  return dtype_bytes(dtype(c));
}

void StorageFormat::validate() const {
  expect_dtype("weights", weight, {Dtype::kBF16, Dtype::kF32});
  expect_dtype("gradients", gradient, {Dtype::kBF16, Dtype::kF32});
  expect_dtype("exp_avg", exp_avg, {Dtype::kBF16, Dtype::kF32});
  expect_dtype("exp_avg_sq", exp_avg_sq, {Dtype::kBF16, Dtype::kUE6M10, Dtype::kF32});
  if (weight == Dtype::kF32 && master != MasterMode::kNone) {
    throw UsageError(fmt::format("layout: weights are fp32 and would get a second master ({})",
                                 master_name(master)),
                     "use --master none with fp32 weights, or --bf16");
  }
}

const Arena& Layout::arena_of(int64_t parameter) const {
  return arenas.at(locations.at(parameter).arena);
}

const Placement& Layout::placement_of(int64_t parameter) const {
  return arena_of(parameter).placements.at(locations.at(parameter).placement);
}

int64_t Layout::bytes(MemoryClass c) const {
  int64_t sum = 0;
  for (const Arena& arena : arenas) sum += arena.bytes(c);
  return sum;
}

int64_t Layout::total_bytes() const {
  int64_t sum = 0;
  for (const MemoryClass c : kMemoryClasses) sum += bytes(c);
  return sum;
}

Layout build_layout(std::span<const arch::Parameter> parameters, const LayoutOptions& options) {
  options.format.validate();
  Layout layout;
  layout.arenas.push_back({.format = options.format});
  std::unordered_set<std::string_view> names;
  int64_t total = 0;
  for (const arch::Parameter& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      throw UsageError(fmt::format("layout: parameter '{}' is listed twice", parameter.name));
    }
    const int64_t numel = checked_numel(parameter);
    int64_t index = 0;
    if (options.keep_fp32 && options.keep_fp32(parameter)) {
      if (layout.arenas.size() == 1) {
        layout.arenas.push_back({.format = kFp32Format});
        layout.arenas.back().format.amsgrad = options.format.amsgrad;
      }
      index = 1;
    }
    Arena& arena = layout.arenas[index];
    const auto placement = static_cast<int64_t>(arena.placements.size());
    append(arena, total, static_cast<int64_t>(layout.locations.size()), numel);
    layout.locations.push_back({.arena = index, .placement = placement});
  }
  return layout;
}

}  // namespace halfstep::layout
