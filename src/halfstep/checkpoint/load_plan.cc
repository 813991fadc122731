#include "halfstep/checkpoint/load_plan.h"

#include <fmt/format.h>

#include <set>

#include "halfstep/core/error.h"

namespace halfstep::checkpoint {
namespace {

std::string tensor_name(TensorKind kind, std::string_view name) {
  return fmt::format("{} of '{}'", tensor_kind_name(kind), name);
}

bool covered(const StoredTensors::Slices& stored, const Slice& request) {
  int64_t count = 0;  // stored slices never overlap, so counting is enough
  for (const StoredSlice* slice : stored) {
    for_each_shared_run(*slice, request, [&](const SharedRun& run) {
      count += run.count;
      return true;
    });
  }
  return count == request.numel;
}

std::string_view describe(ValueSource source) {
  switch (source) {
    case ValueSource::kMaster:
      return "from the FP32 master";
    case ValueSource::kFp32Weight:
      return "from the FP32 weight";
    case ValueSource::kSplit:
      return "from weight and remainder";
    case ValueSource::kBf16Weight:
      return "from the BF16 weight: the bits below it are lost";
    case ValueSource::kNone:
      break;
  }
  return "";
}

// The tensors that a source reads.
std::vector<TensorKind> kinds_read(ValueSource source) {
  switch (source) {
    case ValueSource::kMaster:
      return {TensorKind::kMaster};
    case ValueSource::kSplit:
      return {TensorKind::kWeight, TensorKind::kRemainder};
    case ValueSource::kFp32Weight:
    case ValueSource::kBf16Weight:
      return {TensorKind::kWeight};
    case ValueSource::kNone:
      break;
  }
  return {};
}

// Decides slice by slice and collects what does not fit.
class Planner {
 public:
  Planner(const StoredTensors& stored, const LoadOptions& options)
      : stored_(stored), options_(options) {}

  void add(const MutableSlice& request);
  void check_unrequested();

  LoadPlan plan;
  std::vector<std::string> faults;
  bool convertible = false;  // some of the faults would not be with convert_state

 private:
  void fault(const std::string& tensor, const std::string& what) {
    faults.push_back(fmt::format("{}: {}", tensor, what));
  }
  // Notes each tensor's line once, however many slices of it are asked for.
  void note(const Slice& slice, const std::string& what) {
    const std::string line = tensor_name(slice.kind, slice.name) + ": " + what;
    if (noted_.insert(line).second) plan.conversions.push_back(line);
  }
  void add_from_value(const MutableSlice& request, const std::string& what);

  const StoredTensors& stored_;
  const LoadOptions& options_;
  std::set<std::pair<TensorKind, std::string_view>> used_;  // requested, or read for a conversion
  std::set<std::string_view> requested_names_;
  std::set<std::string> noted_;
};

void Planner::add(const MutableSlice& request) {
  if (const std::string what = slice_fault(request); !what.empty()) {
    throw InternalError(
        fmt::format("checkpoint: {}: {}", tensor_name(request.kind, request.name), what));
  }
  used_.emplace(request.kind, request.name);
  requested_names_.insert(request.name);
  if (request.numel == 0) return;  // nothing to read, and nothing was stored for it
  const auto& slices = stored_.find(request.kind, request.name);
  const std::string tensor = tensor_name(request.kind, request.name);
  if (!slices.empty() && slices[0]->shape != request.shape) {
    fault(tensor, fmt::format("stored with shape [{}], asked for [{}]",
                              fmt::join(slices[0]->shape, ", "), fmt::join(request.shape, ", ")));
  } else if (!slices.empty() && !covered(slices, request)) {
    fault(tensor, fmt::format("missing: not all elements of {}", format_slice_name(request)));
  } else if (!slices.empty() && slices[0]->dtype == request.dtype) {
    plan.slices.push_back({&request, PlannedSlice::How::kCopy, ValueSource::kNone});
  } else if (is_weight_kind(request.kind)) {
    add_from_value(request, slices.empty() ? std::string("missing")
                                           : fmt::format("stored as {}, asked for {}",
                                                         dtype_name(slices[0]->dtype),
                                                         dtype_name(request.dtype)));
  } else if (slices.empty()) {
    fault(tensor, "missing");
  } else if (!options_.convert_state) {
    convertible = true;
    fault(tensor, fmt::format("stored as {}, asked for {}", dtype_name(slices[0]->dtype),
                              dtype_name(request.dtype)));
  } else {
    note(request,
         fmt::format("{} -> {}, nearest", dtype_name(slices[0]->dtype), dtype_name(request.dtype)));
    plan.slices.push_back({&request, PlannedSlice::How::kConvert, ValueSource::kNone});
  }
}

void Planner::add_from_value(const MutableSlice& request, const std::string& what) {
  const std::string tensor = tensor_name(request.kind, request.name);
  const bool lossy = options_.convert_state && options_.allow_lossy_master;
  const ValueSource source = value_source(stored_, request.name, lossy);
  if (source == ValueSource::kNone) {
    const bool has_weight = stored_.has(TensorKind::kWeight, request.name, Dtype::kBF16);
    convertible = convertible || has_weight;
    fault(tensor, has_weight ? what +
                                   "; only the BF16 weight is there, and --allow-lossy-master "
                                   "would take it"
                             : what);
    return;
  }
  if (!options_.convert_state) {
    convertible = true;
    fault(tensor, what);
    return;
  }
  for (const TensorKind kind : kinds_read(source)) {
    const auto& slices = stored_.find(kind, request.name);
    if (slices[0]->shape != request.shape || !covered(slices, request)) {
      fault(tensor, fmt::format("its source, {}, has another shape or lacks elements",
                                tensor_name(kind, request.name)));
      return;
    }
    used_.emplace(kind, request.name);
  }
  note(request, std::string(describe(source)));
  plan.slices.push_back({&request, PlannedSlice::How::kFromValue, source});
}

void Planner::check_unrequested() {
  if (options_.allow_unrequested) return;
  for (const auto& [key, slices] : stored_.all()) {
    if (used_.contains(key)) continue;
    const auto& [kind, name] = key;
    // What another kind of master, or none, and no amsgrad have no use for.
    const bool droppable = requested_names_.contains(name) &&
                           (kind == TensorKind::kMaster || kind == TensorKind::kRemainder ||
                            kind == TensorKind::kMaxExpAvgSq);
    if (droppable && options_.convert_state) {
      note(*slices[0], "dropped");
    } else {
      convertible = convertible || droppable;
      fault(tensor_name(kind, name), "unexpected: nothing here takes it");
    }
  }
}

}  // namespace

StoredTensors::StoredTensors(const Manifest& manifest) {
  for (const StoredSlice& slice : manifest.slices) {
    tensors_[{slice.kind, slice.name}].push_back(&slice);
  }
}

const StoredTensors::Slices& StoredTensors::find(TensorKind kind, std::string_view name) const {
  static const Slices kNone;
  const auto it = tensors_.find({kind, name});
  return it == tensors_.end() ? kNone : it->second;
}

bool StoredTensors::has(TensorKind kind, std::string_view name, Dtype dtype) const {
  const Slices& slices = find(kind, name);
  return !slices.empty() && slices[0]->dtype == dtype;
}

ValueSource value_source(const StoredTensors& stored, std::string_view name, bool allow_lossy) {
  if (stored.has(TensorKind::kMaster, name, Dtype::kF32)) return ValueSource::kMaster;
  if (stored.has(TensorKind::kWeight, name, Dtype::kF32)) return ValueSource::kFp32Weight;
  if (!stored.has(TensorKind::kWeight, name, Dtype::kBF16)) return ValueSource::kNone;
  if (stored.has(TensorKind::kRemainder, name, Dtype::kI16)) return ValueSource::kSplit;
  return allow_lossy ? ValueSource::kBf16Weight : ValueSource::kNone;
}

LoadPlan plan_load(const StoredTensors& stored, std::span<const MutableSlice> requests,
                   const LoadOptions& options, const std::string& where) {
  Planner planner(stored, options);
  for (const MutableSlice& request : requests) planner.add(request);
  planner.check_unrequested();
  if (!planner.faults.empty()) {
    throw InputError(
        fmt::format("{}: {} of its tensors do not fit what is asked for\n  {}", where,
                    planner.faults.size(), fmt::join(planner.faults, "\n  ")),
        planner.convertible
            ? "use the formats that it was saved with, or convert with --convert-state"
            : fmt::format("is it a checkpoint of this model? See: halfstep inspect {}", where));
  }
  return std::move(planner.plan);
}

}  // namespace halfstep::checkpoint
