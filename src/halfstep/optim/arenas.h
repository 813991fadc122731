// The memory of a rank's static state: one flat tensor per memory class and arena, sized and
// divided as `layout` says, allocated once at construction and zeroed, so before any activation.
// Weights and gradients are whole on every rank; of master and states it holds the rank's shards. Their addresses never change. What was allocated is measured and compared with the
// plan: a difference is an InternalError here, before step 1 (docs/memory.md). Made and owned by
// the training loop; the model reads its weights, GradientBuffer its gradients, AdamW all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "halfstep/arch/parameter.h"
#include "halfstep/layout/layout.h"

namespace halfstep::optim {

// Planned and measured bytes of one class of one arena: a row of the start-up report.
struct ClassMemory {
  int64_t arena = 0;  // index in the layout: 0 is the common one, 1 that of --fp32-params
  layout::MemoryClass memory_class = layout::MemoryClass::kWeight;
  Dtype dtype = Dtype::kF32;
  int64_t planned_bytes = 0;       // layout's figure
  int64_t measured_bytes = 0;      // growth of all live tensor bytes by the allocation
  double bytes_per_parameter = 0;  // measured on this rank, over the arena's N
};

// Of one rank.
struct MemoryReport {
  std::vector<ClassMemory> classes;  // only those that exist
  int64_t num_parameters = 0;        // N
  int64_t num_elements = 0;          // N′ = N + padding
  int64_t planned_bytes = 0;         // totals
  int64_t measured_bytes = 0;
};

// Throws InternalError ("a promised saving did not appear") if a class was not allocated to the
// byte as planned.
void check_memory(const MemoryReport& report);

class Arenas {
 public:
  // `layout` must be that of `parameters`; `rank` is the one of its num_ranks() whose shards these
  // are. CPU is the only device for now.
  Arenas(std::vector<arch::Parameter> parameters, layout::Layout layout, int64_t rank = 0,
         at::Device device = at::kCPU);
  // Leaf tensors point into the arenas and hooks may point at owners of this object.
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;

  const std::vector<arch::Parameter>& parameters() const { return parameters_; }
  const layout::Layout& layout() const { return layout_; }
  at::Device device() const { return device_; }

  // One leaf per parameter, of its shape, with requires_grad: views into the weights, for
  // model::Model.
  const std::vector<at::Tensor>& weights() const { return weights_; }

  // What this rank owns: a slice per parameter of which its shards hold anything, in the order of
  // arenas and elements.
  std::span<const layout::ShardSlice> shard() const { return shard_; }
  // That of one parameter, null if nothing of it is here.
  const layout::ShardSlice* owned(int64_t parameter) const {
    return owned_.at(parameter) < 0 ? nullptr : &shard_[owned_[parameter]];
  }

  // The parameter's elements of a class that are here: all of a weight or gradient, the owned slice
  // of a sharded class. A pointer (null where the class does not exist or nothing of it is here),
  // and a flat view (undefined then; int16 for remainders, uint16 for ue6m10).
  void* data(layout::MemoryClass c, int64_t parameter) const;
  at::Tensor view(layout::MemoryClass c, int64_t parameter) const;
  // The elements of an owned slice, in any class.
  void* data(layout::MemoryClass c, const layout::ShardSlice& slice) const;
  // Where the slice's reduced gradient stands (layout::ShardSlice::reduced_byte).
  void* reduced_gradient(const layout::ShardSlice& slice) const;
  // The whole flat array of an arena, padding included, and its address.
  const at::Tensor& flat(layout::MemoryClass c, int64_t arena) const;
  void* base(layout::MemoryClass c, int64_t arena) const { return flat(c, arena).data_ptr(); }

  const MemoryReport& memory() const { return memory_; }

 private:
  void* element(layout::MemoryClass c, int64_t arena, int64_t offset) const;

  std::vector<arch::Parameter> parameters_;
  layout::Layout layout_;
  at::Device device_;
  std::vector<std::vector<at::Tensor>> flat_;  // [arena][memory class]
  std::vector<at::Tensor> weights_;
  std::vector<layout::ShardSlice> shard_;
  std::vector<int64_t> owned_;  // by parameter: index in shard_, −1 where nothing of it is here
  MemoryReport memory_;
};

}  // namespace halfstep::optim
