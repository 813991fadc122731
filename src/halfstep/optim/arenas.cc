#include "halfstep/optim/arenas.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "halfstep/core/error.h"
#include "halfstep/optim/memory_counter.h"

namespace halfstep::optim {
namespace {

using layout::MemoryClass;

at::ScalarType torch_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kBF16:
      return at::kBFloat16;
    case Dtype::kUE6M10:
      return at::kUInt16;
    case Dtype::kI16:
      return at::kShort;
  }
  throw InternalError("arenas: unknown dtype");
}

size_t index_of(MemoryClass c) { return static_cast<size_t>(c); }

at::Tensor allocate_zeroed(const layout::Arena& arena, MemoryClass c, at::Device device) {
  const Dtype dtype = arena.format.dtype(c);
  try {
    return at::empty({arena.elements(c)}, at::dtype(torch_dtype(dtype)).device(device)).zero_();
  } catch (const c10::Error&) {
    throw Error(ExitCode::kOutOfMemory,
                fmt::format("out of memory: {} ({}) of {} parameters need {} bytes",
                            layout::memory_class_name(c), dtype_name(dtype), arena.num_parameters,
                            arena.bytes(c)),
                "less memory is needed with --reuse-fp32-param, --o2-optimizer and --o2-gradient");
  }
}

}  // namespace

void check_memory(const MemoryReport& report) {
  for (const ClassMemory& row : report.classes) {
    if (row.measured_bytes != row.planned_bytes) {
      throw InternalError(fmt::format(
          "a promised saving did not appear: {} ({}) of arena {} took {} bytes, planned {}",
          layout::memory_class_name(row.memory_class), dtype_name(row.dtype), row.arena,
          row.measured_bytes, row.planned_bytes));
    }
  }
}

Arenas::Arenas(std::vector<arch::Parameter> parameters, layout::Layout layout, int64_t rank,
               at::Device device)
    : parameters_(std::move(parameters)),
      layout_(std::move(layout)),
      device_(device),
      shard_(layout_.shard(rank)) {
  if (!device.is_cpu()) {
    throw UsageError(fmt::format("device '{}' is not supported; expected cpu", device.str()));
  }
  check(parameters_.size() == layout_.locations.size(), "arenas: layout of another model");
  const MemoryCounter& counter = MemoryCounter::instance();
  flat_.resize(layout_.arenas.size());
  for (size_t a = 0; a < layout_.arenas.size(); ++a) {
    const layout::Arena& arena = layout_.arenas[a];
    memory_.num_parameters += arena.num_parameters;
    memory_.num_elements += arena.num_elements;
    flat_[a].resize(layout::kMemoryClasses.size());
    for (const MemoryClass c : layout::kMemoryClasses) {
      if (arena.format.bytes_per_element(c) == 0) continue;
      const int64_t before = counter.thread_bytes();
      flat_[a][index_of(c)] = allocate_zeroed(arena, c, device);
      const int64_t measured = counter.thread_bytes() - before;
      memory_.classes.push_back(
          {.arena = static_cast<int64_t>(a),
           .memory_class = c,
           .dtype = arena.format.dtype(c),
           .planned_bytes = arena.bytes(c),
           .measured_bytes = measured,
           .bytes_per_parameter = arena.num_parameters == 0
                                      ? 0.0
                                      : static_cast<double>(measured) / arena.num_parameters});
      memory_.planned_bytes += arena.bytes(c);
      memory_.measured_bytes += measured;
    }
  }
  check_memory(memory_);

  owned_.assign(parameters_.size(), -1);
  for (size_t i = 0; i < shard_.size(); ++i) owned_[shard_[i].parameter] = static_cast<int64_t>(i);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    check(layout_.placement_of(p).numel == parameters_[p].numel(),
          "arenas: layout of other shapes");
    // variable_data: a leaf with a version counter of its own, so that writing one parameter does
    // not look to autograd like writing all of them.
    at::Tensor leaf = view(MemoryClass::kWeight, p).view(parameters_[p].shape).variable_data();
    weights_.push_back(leaf.requires_grad_(true));
  }
}

at::Tensor Arenas::view(MemoryClass c, int64_t parameter) const {
  const at::Tensor& whole = flat(c, layout_.locations.at(parameter).arena);
  if (!whole.defined()) return {};
  if (layout::is_sharded(c)) {
    const layout::ShardSlice* slice = owned(parameter);
    return slice == nullptr ? at::Tensor() : whole.narrow(0, slice->state_offset, slice->numel);
  }
  const layout::Placement& place = layout_.placement_of(parameter);
  return whole.narrow(0, place.offset, place.numel);
}

void* Arenas::data(MemoryClass c, int64_t parameter) const {
  if (layout::is_sharded(c)) {
    const layout::ShardSlice* slice = owned(parameter);
    return slice == nullptr ? nullptr : data(c, *slice);
  }
  return element(c, layout_.locations.at(parameter).arena, layout_.placement_of(parameter).offset);
}

void* Arenas::data(MemoryClass c, const layout::ShardSlice& slice) const {
  return element(c, slice.arena, layout::is_sharded(c) ? slice.state_offset : slice.offset);
}

void* Arenas::reduced_gradient(const layout::ShardSlice& slice) const {
  return static_cast<char*>(base(MemoryClass::kGradient, slice.arena)) + slice.reduced_byte;
}

void* Arenas::element(MemoryClass c, int64_t arena, int64_t offset) const {
  const at::Tensor& whole = flat(c, arena);
  if (!whole.defined()) return nullptr;
  return static_cast<char*>(whole.data_ptr()) + offset * whole.element_size();
}

const at::Tensor& Arenas::flat(MemoryClass c, int64_t arena) const {
  return flat_.at(arena)[index_of(c)];
}

}  // namespace halfstep::optim
