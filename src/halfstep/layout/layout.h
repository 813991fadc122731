// Where every parameter lives: parameters → arenas → buckets → shards → byte ranges per class. The
// only place that computes an offset; the optimizer allocates from it, the start-up report and the
// planner count with it, the checkpoint addresses through it. Pure functions over data.
//
// An arena is a set of flat arrays, one per memory class. Weights and gradients share one element
// numbering on every rank; each parameter starts at a multiple of kAlignment elements. An arena is
// cut into buckets of whole parameters, the units of communication, and a bucket into num_ranks
// equal shards, one per data-parallel rank (ZeRO-1): master and states exist only for the own
// shards, one after the other in bucket order. With one rank its shard is everything, and states
// have the numbering of the weights. Arrays hold N′ = N + padding elements, N′ / num_ranks of a
// sharded class (docs/numerics.md §3, docs/distributed.md).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "halfstep/arch/parameter.h"
#include "halfstep/core/dtype.h"

namespace halfstep::layout {

inline constexpr int64_t kAlignment = 128;  // elements

enum class MemoryClass : uint8_t {
  kWeight,
  kGradient,
  kMaster,
  kExpAvg,
  kExpAvgSq,
  kMaxExpAvgSq,
};
inline constexpr std::array kMemoryClasses{MemoryClass::kWeight,   MemoryClass::kGradient,
                                           MemoryClass::kMaster,   MemoryClass::kExpAvg,
                                           MemoryClass::kExpAvgSq, MemoryClass::kMaxExpAvgSq};
// "weights", "gradients", "master", "exp_avg", "exp_avg_sq", "max_exp_avg_sq": the keys of reports.
std::string_view memory_class_name(MemoryClass c);
// Whether a rank holds only its shards of the class.
bool is_sharded(MemoryClass c);

// How the elements of an arena are stored.
struct StorageFormat {
  Dtype weight = Dtype::kBF16;
  Dtype gradient = Dtype::kF32;
  MasterMode master = MasterMode::kFp32;
  Dtype exp_avg = Dtype::kF32;
  Dtype exp_avg_sq = Dtype::kF32;
  bool amsgrad = false;

  // The element type of a class; nothing of it exists if bytes_per_element is 0.
  Dtype dtype(MemoryClass c) const;
  int64_t bytes_per_element(MemoryClass c) const;
  // Throws UsageError for a dtype that its class cannot have, and for a master beside FP32 weights
  // (which are their own master: a second one would be 4 bytes for nothing).
  void validate() const;
  friend bool operator==(const StorageFormat&, const StorageFormat&) = default;
};

struct Placement {
  int64_t parameter = 0;  // index in the parameter list
  int64_t offset = 0;     // first element in the arena, a multiple of kAlignment
  int64_t numel = 0;
  int64_t bucket = 0;  // index in Layout::buckets
};

struct Arena {
  StorageFormat format;
  Dtype wire = Dtype::kF32;                // in which gradients travel: kF32 or kBF16
  int64_t num_ranks = 1;                   // data-parallel ranks that share the sharded classes
  std::vector<Placement> placements = {};  // in order, no overlap
  int64_t num_elements = 0;                // N′: a multiple of num_ranks · kAlignment
  int64_t num_parameters = 0;              // N: Σ numel

  // What one rank holds of a class.
  int64_t elements(MemoryClass c) const {
    return is_sharded(c) ? num_elements / num_ranks : num_elements;
  }
  int64_t bytes(MemoryClass c) const { return elements(c) * format.bytes_per_element(c); }
};

// A run of whole parameters that is reduced and gathered as one.
struct Bucket {
  int64_t arena = 0;
  int64_t first_placement = 0, end_placement = 0;
  int64_t offset = 0;        // first element in the arena
  int64_t num_elements = 0;  // a multiple of num_ranks · kAlignment

  int64_t num_parameters() const { return end_placement - first_placement; }
};

// The part of a parameter that lies in a rank's shard, and where its elements stand.
struct ShardSlice {
  int64_t parameter = 0;
  int64_t arena = 0;
  int64_t first = 0;  // flat index in the parameter, a multiple of kAlignment
  int64_t numel = 0;
  int64_t offset = 0;        // of `first` in the weights and gradients of the arena
  int64_t state_offset = 0;  // in this rank's master and states
  // Byte in the arena's gradients at which the reduced gradient starts: with one rank the gradient
  // itself; else FP32 values, from the beginning of the bucket's storage (docs/numerics.md §7).
  int64_t reduced_byte = 0;
};

// Buffers for the largest bucket on the wire.
struct ReduceBuffers {
  int64_t count = 0;
  int64_t receive_bytes = 0;  // of each
  int64_t send_bytes = 0;     // of each, where the wire has another dtype than the gradients

  int64_t bytes() const { return count * (receive_bytes + send_bytes); }
};

struct Layout {
  std::vector<Arena> arenas;  // first the common one, then, if any parameter asked for it, FP32
  // In the order of their first parameters: forward needs them in this order, backward completes
  // them in the opposite one.
  std::vector<Bucket> buckets;
  struct Location {
    int64_t arena = 0, placement = 0;
  };
  std::vector<Location> locations;  // by parameter index

  int64_t num_ranks() const { return arenas.front().num_ranks; }
  const Arena& arena_of(int64_t parameter) const;
  const Placement& placement_of(int64_t parameter) const;
  // Per rank.
  int64_t bytes(MemoryClass c) const;
  int64_t total_bytes() const;

  // What `rank` owns, in the order of arenas and elements: each element of each parameter is in
  // exactly one slice of one rank, padding in none.
  std::vector<ShardSlice> shard(int64_t rank) const;
  int64_t shard_elements(const Bucket& bucket) const { return bucket.num_elements / num_ranks(); }
  // kF32 as a sum over ranks; with one rank what was accumulated.
  Dtype reduced_dtype(int64_t arena) const;
  // Bytes of one bucket on the wire, and whether that has another dtype than the gradients.
  int64_t wire_bytes(const Bucket& bucket) const;
  bool wire_is_copy(const Bucket& bucket) const;
  // What reducing up to `in_flight` buckets at once takes beside the arenas. Nothing with one rank.
  ReduceBuffers reduce_buffers(int64_t in_flight) const;
};

struct LayoutOptions {
  StorageFormat format;
  // Parameters for which this is true keep FP32 weights, gradients and state (--fp32-params); their
  // gradients travel in FP32.
  std::function<bool(const arch::Parameter&)> keep_fp32 = nullptr;
  int64_t num_ranks = 1;
  // Buckets end before they exceed this many bytes of accumulated gradient, but never between
  // parameters that are stacked on each other.
  int64_t bucket_bytes = int64_t{32} << 20;
  // --grad-wire-dtype; the gradients' own if they are BF16 anyway.
  Dtype wire = Dtype::kF32;
};

// Places parameters in list order: those of the common format in arena 0, the others in arena 1.
// Throws UsageError for a format that does not exist, an empty or duplicate parameter (one that is
// listed twice would be counted, stored and updated twice), and sizes beyond 2⁶³ bytes.
Layout build_layout(std::span<const arch::Parameter> parameters, const LayoutOptions& options);

}  // namespace halfstep::layout
