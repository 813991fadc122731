// Where every parameter lives: parameters → arenas → byte ranges per class. The only place that
// computes an offset; the optimizer allocates from it, the start-up report and the planner count
// with it, the checkpoint addresses through it. Pure functions over data.
//
// An arena is a set of flat arrays, one per memory class, that share one element numbering: a
// parameter starts at the same element in the weights, the gradients and the states. Each starts at
// a multiple of kAlignment elements, so arrays hold N′ = N + padding elements (docs/numerics.md
// §3).
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
};

struct Arena {
  StorageFormat format;
  std::vector<Placement> placements = {};  // in order, no overlap
  int64_t num_elements = 0;                // N′: a multiple of kAlignment
  int64_t num_parameters = 0;              // N: Σ numel

  int64_t bytes(MemoryClass c) const { return num_elements * format.bytes_per_element(c); }
};

struct Layout {
  std::vector<Arena> arenas;  // first the common one, then, if any parameter asked for it, FP32
  struct Location {
    int64_t arena = 0, placement = 0;
  };
  std::vector<Location> locations;  // by parameter index

  const Arena& arena_of(int64_t parameter) const;
  const Placement& placement_of(int64_t parameter) const;
  int64_t bytes(MemoryClass c) const;
  int64_t total_bytes() const;
};

struct LayoutOptions {
  StorageFormat format;
  // Parameters for which this is true keep FP32 weights, gradients and state (--fp32-params).
  std::function<bool(const arch::Parameter&)> keep_fp32 = nullptr;
};

// Places parameters in list order: those of the common format in arena 0, the others in arena 1.
// Throws UsageError for a format that does not exist, an empty or duplicate parameter (one that is
// listed twice would be counted, stored and updated twice), and sizes beyond 2⁶³ bytes.
Layout build_layout(std::span<const arch::Parameter> parameters, const LayoutOptions& options);

}  // namespace halfstep::layout
