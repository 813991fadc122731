#include "halfstep/layout/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

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

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Fills one arena: parameters are appended to the open bucket until it is full.
class ArenaBuilder {
 public:
  ArenaBuilder(Layout& layout, int64_t index, const LayoutOptions& options)
      : layout_(layout), index_(index) {
    const int64_t bytes = dtype_bytes(arena().format.gradient);
    limit_ = std::max<int64_t>(options.bucket_bytes / bytes, 1);
  }

  // `together` are stacked parameters, by index and number of elements; `total` is the number of
  // elements in all arenas.
  void append(std::span<const std::pair<int64_t, int64_t>> together, int64_t& total) {
    int64_t added = 0;
    for (const auto& [parameter, numel] : together) added += round_up(numel, kAlignment);
    if (open_ && arena().num_elements + added - bucket_.offset > limit_) close(total);
    if (!open_) {
      bucket_ = {.arena = index_,
                 .first_placement = std::ssize(arena().placements),
                 .offset = arena().num_elements};
      open_ = true;
    }
    for (const auto& [parameter, numel] : together) {
      layout_.locations[parameter] = {.arena = index_, .placement = std::ssize(arena().placements)};
      arena().placements.push_back(
          {.parameter = parameter, .offset = arena().num_elements, .numel = numel});
      grow(round_up(numel, kAlignment), total);
      arena().num_parameters += numel;
    }
  }

  // Ends the open bucket, padded so that its shards are equal and aligned.
  void close(int64_t& total) {
    if (!open_) return;
    const int64_t used = arena().num_elements - bucket_.offset;
    bucket_.num_elements = round_up(used, arena().num_ranks * kAlignment);
    bucket_.end_placement = std::ssize(arena().placements);
    grow(bucket_.num_elements - used, total);
    layout_.buckets.push_back(bucket_);
    open_ = false;
  }

 private:
  Arena& arena() { return layout_.arenas[index_]; }
  void grow(int64_t elements, int64_t& total) {
    if (elements > kMaxElements - total) {
      throw UsageError("layout: the model has more bytes than 64 bits can count");
    }
    total += elements;
    arena().num_elements += elements;
  }

  Layout& layout_;
  int64_t index_;
  int64_t limit_;  // elements of a bucket
  Bucket bucket_;
  bool open_ = false;
};

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

bool is_sharded(MemoryClass c) {
  return c != MemoryClass::kWeight && c != MemoryClass::kGradient;
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

std::vector<ShardSlice> Layout::shard(int64_t rank) const {
  std::vector<ShardSlice> slices;
  for (const Bucket& bucket : buckets) {
    const int64_t size = shard_elements(bucket);
    const int64_t begin = bucket.offset + rank * size, end = begin + size;
    const Arena& arena = arenas[bucket.arena];
    for (int64_t i = bucket.first_placement; i < bucket.end_placement; ++i) {
      const Placement& p = arena.placements[i];
      const int64_t from = std::max(p.offset, begin), to = std::min(p.offset + p.numel, end);
      if (from >= to) continue;
      const int64_t in_shard = from - begin;
      slices.push_back(
          {.parameter = p.parameter,
           .arena = bucket.arena,
           .first = from - p.offset,
           .numel = to - from,
           .offset = from,
           .state_offset = bucket.offset / num_ranks() + in_shard,
           .reduced_byte = num_ranks() == 1
                               ? from * dtype_bytes(arena.format.gradient)
                               : bucket.offset * dtype_bytes(arena.format.gradient) +
                                     in_shard * dtype_bytes(Dtype::kF32)});
    }
  }
  return slices;
}

Dtype Layout::reduced_dtype(int64_t arena) const {
  return num_ranks() == 1 ? arenas[arena].format.gradient : Dtype::kF32;
}

int64_t Layout::wire_bytes(const Bucket& bucket) const {
  return bucket.num_elements * dtype_bytes(arenas[bucket.arena].wire);
}

bool Layout::wire_is_copy(const Bucket& bucket) const {
  return arenas[bucket.arena].wire != arenas[bucket.arena].format.gradient;
}

ReduceBuffers Layout::reduce_buffers(int64_t in_flight) const {
  ReduceBuffers buffers;
  if (num_ranks() == 1) return buffers;
  buffers.count = std::min<int64_t>(in_flight, std::ssize(buckets));
  for (const Bucket& bucket : buckets) {
    const int64_t bytes = wire_bytes(bucket);
    buffers.receive_bytes = std::max(buffers.receive_bytes, bytes);
    if (wire_is_copy(bucket)) buffers.send_bytes = std::max(buffers.send_bytes, bytes);
  }
  return buffers;
}

Layout build_layout(std::span<const arch::Parameter> parameters, const LayoutOptions& options) {
  options.format.validate();
  check(options.num_ranks >= 1 && options.bucket_bytes >= 1, "layout: ranks and bucket size");
  Layout layout;
  layout.arenas.push_back(
      {.format = options.format,
       .wire = options.format.gradient == Dtype::kBF16 ? Dtype::kBF16 : options.wire,
       .num_ranks = options.num_ranks});
  layout.arenas.push_back({.format = kFp32Format, .num_ranks = options.num_ranks});
  layout.arenas.back().format.amsgrad = options.format.amsgrad;
  layout.locations.resize(parameters.size());
  ArenaBuilder builders[] = {{layout, 0, options}, {layout, 1, options}};

  const auto arena_of = [&](const arch::Parameter& parameter) {
    return options.keep_fp32 && options.keep_fp32(parameter) ? 1 : 0;
  };
  std::unordered_set<std::string_view> names;
  int64_t total = 0;
  std::vector<std::pair<int64_t, int64_t>> together;  // index, number of elements
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!names.insert(parameters[p].name).second) {
      throw UsageError(fmt::format("layout: parameter '{}' is listed twice", parameters[p].name));
    }
    together.emplace_back(p, checked_numel(parameters[p]));
    const bool continues = p + 1 < parameters.size() && parameters[p + 1].stacked_on_previous &&
                           arena_of(parameters[p + 1]) == arena_of(parameters[p]);
    if (continues) continue;
    builders[arena_of(parameters[p])].append(together, total);
    together.clear();
  }
  for (ArenaBuilder& builder : builders) builder.close(total);
  if (layout.arenas[1].placements.empty()) layout.arenas.pop_back();

  std::ranges::sort(layout.buckets, {}, [&](const Bucket& bucket) {
    return layout.arenas[bucket.arena].placements[bucket.first_placement].parameter;
  });
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    for (int64_t i = bucket.first_placement; i < bucket.end_placement; ++i) {
      layout.arenas[bucket.arena].placements[i].bucket = static_cast<int64_t>(b);
    }
  }
  return layout;
}

}  // namespace halfstep::layout
