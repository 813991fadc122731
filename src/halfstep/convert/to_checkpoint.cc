// The two conversions whose target is a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/comm/single_rank.h"
#include "halfstep/convert/convert.h"
#include "halfstep/convert/encoder.h"
#include "halfstep/convert/source.h"
#include "halfstep/core/error.h"
#include "halfstep/hf/model_files.h"
#include "halfstep/io/folder_lock.h"

namespace halfstep::convert {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorSlice;
using checkpoint::TrainState;

constexpr layout::StorageFormat kFp32Storage{.weight = Dtype::kF32,
                                             .gradient = Dtype::kF32,
                                             .master = MasterMode::kNone,
                                             .exp_avg = Dtype::kF32,
                                             .exp_avg_sq = Dtype::kF32};

// The folder of the target: locked against a run that saves there, and gone again if nothing came
// of it.
class TargetFolder {
 public:
  explicit TargetFolder(fs::path folder)
      : folder_(std::move(folder)), was_there_(fs::exists(folder_)), lock_(folder_) {}
  ~TargetFolder() {
    if (was_there_ || kept_) return;
    std::error_code ignored;
    fs::remove(folder_ / ".lock", ignored);
    fs::remove(folder_, ignored);  // only if it is empty
  }
  TargetFolder(const TargetFolder&) = delete;
  TargetFolder& operator=(const TargetFolder&) = delete;
  void keep() { kept_ = true; }

 private:
  fs::path folder_;
  bool was_there_, kept_ = false;
  io::FolderLock lock_;
};

void refuse_other_checkpoints(const fs::path& save) {
  if (!checkpoint::is_checkpoint(save) && checkpoint::folders_without_manifest(save).empty()) {
    return;
  }
  throw UsageError(fmt::format("--save {} already holds checkpoints", save.string()),
                   "choose another folder");
}

// A save of the same iteration takes the place of the one that is there.
void refuse_own_source(const checkpoint::CheckpointReader& reader, const fs::path& save) {
  const fs::path source = fs::weakly_canonical(reader.directory());
  const fs::path target = fs::weakly_canonical(save);
  const auto inside = std::mismatch(source.begin(), source.end(), target.begin(), target.end());
  if (target != source.parent_path() && inside.first != source.end()) return;
  throw UsageError(fmt::format("--save {} is the folder that --load reads", save.string()),
                   "the source is never changed: choose another folder");
}

// Every tensor that a parameter has in a format.
std::vector<Target> targets_of(int64_t parameter, const layout::StorageFormat& format,
                               bool has_fp32_value) {
  using layout::MemoryClass;
  std::vector<Target> targets;
  const bool bf16 = format.weight == Dtype::kBF16;
  // With a remainder the two have to be of one number; without any master the rounding of an FP32
  // value that was there is a loss, to be made here and counted.
  const bool has_master = format.master != MasterMode::kNone;
  const bool drops_value = bf16 && !has_master && has_fp32_value;
  targets.push_back({.kind = TensorKind::kWeight,
                     .parameter = parameter,
                     .dtype = format.weight,
                     .from_value = bf16 && (format.master == MasterMode::kSplit || drops_value),
                     .rounding_counts = !has_master});
  if (format.master == MasterMode::kFp32) {
    targets.push_back({TensorKind::kMaster, parameter, Dtype::kF32});
  } else if (format.master == MasterMode::kSplit) {
    targets.push_back({TensorKind::kRemainder, parameter, Dtype::kI16});
  }
  targets.push_back({TensorKind::kExpAvg, parameter, format.exp_avg});
  targets.push_back({TensorKind::kExpAvgSq, parameter, format.exp_avg_sq});
  if (format.amsgrad) targets.push_back({TensorKind::kMaxExpAvgSq, parameter, format.exp_avg_sq});
  return targets;
}

// "bf16", or "bf16+fp32" where some parameters differ.
std::string joined(const std::set<std::string>& names) {
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, "+"));
}

TensorKind class_of(TensorKind kind) {
  return kind == TensorKind::kRemainder ? TensorKind::kMaster : kind;
}

// What is in a source or goes into a target: bytes and formats by class.
struct Inventory {
  struct Entry {
    std::set<std::string> formats;
    int64_t bytes = 0;
  };
  std::map<TensorKind, Entry> classes;

  void add(TensorKind kind, Dtype dtype, int64_t numel) {
    Entry& entry = classes[class_of(kind)];
    entry.formats.insert(kind == TensorKind::kRemainder ? "split" : std::string(dtype_name(dtype)));
    entry.bytes += numel * dtype_bytes(dtype);
  }
};

Inventory inventory_of(const checkpoint::Manifest& manifest) {
  Inventory inventory;
  for (const checkpoint::StoredSlice& s : manifest.slices) {
    inventory.add(s.kind, s.dtype, s.numel);
  }
  return inventory;
}

void fill_report(const Inventory& before, const Inventory& after, Encoder& encoder,
                 Report& report) {
  for (const TensorKind kind : {TensorKind::kWeight, TensorKind::kMaster, TensorKind::kExpAvg,
                                TensorKind::kExpAvgSq, TensorKind::kMaxExpAvgSq}) {
    const auto entry = [kind](const Inventory& inventory) {
      const auto it = inventory.classes.find(kind);
      return it == inventory.classes.end() ? Inventory::Entry{} : it->second;
    };
    const Inventory::Entry was = entry(before), is = entry(after);
    if (was.bytes == 0 && is.bytes == 0) continue;
    ClassReport row = encoder.counts(kind);
    row.name = std::string(checkpoint::tensor_kind_name(kind));
    row.from = joined(was.formats);
    row.to = joined(is.formats);
    row.bytes_before = was.bytes;
    row.bytes_after = is.bytes;
    report.classes.push_back(std::move(row));
  }
}

// Writes all of a source in the storage that `state` names, and completes the report.
void save_as(Source& source, const TrainState& state, const Inventory& before, const fs::path& save,
             Report& report) {
  TargetFolder folder(save);
  Encoder encoder(source);
  Inventory after;
  std::vector<TensorSlice> slices;
  for (int64_t p = 0; p < std::ssize(source.parameters()); ++p) {
    const Tensor& parameter = source.parameters()[static_cast<size_t>(p)];
    const auto& fp32 = state.fp32_params;
    const bool keeps_fp32 = std::find(fp32.begin(), fp32.end(), parameter.name) != fp32.end();
    layout::StorageFormat format = keeps_fp32 ? kFp32Storage : state.storage;
    format.amsgrad = state.storage.amsgrad;
    for (const Target& target : targets_of(p, format, source.has_fp32_value(p))) {
      TensorSlice slice;
      static_cast<checkpoint::Slice&>(slice) =
          checkpoint::whole_slice(target.kind, parameter.name, parameter.shape, target.dtype);
      slice.produce = [&encoder, target](int64_t first_byte, std::span<std::byte> out) {
        encoder.encode(target, first_byte / dtype_bytes(target.dtype), out);
      };
      after.add(target.kind, target.dtype, slice.numel);
      if (target.kind == TensorKind::kWeight) report.parameters += slice.numel;
      slices.push_back(std::move(slice));
    }
  }
  comm::SingleRank alone;
  const auto result = checkpoint::save_checkpoint(save, state, slices, {}, alone);
  folder.keep();
  report.target = result.directory.string();
  report.iteration = state.iteration;
  report.notes.insert(report.notes.end(), result.warnings.begin(), result.warnings.end());
  fill_report(before, after, encoder, report);
}

// An FP32 value that only a BF16 weight is left of has lost its lower bits: a choice of the user.
void check_values(const Source& source, const TrainState& state, const std::string& where,
                  bool allow_lossy_master, Report& report) {
  if (state.storage.weight == Dtype::kBF16 && state.storage.master == MasterMode::kNone) return;
  int64_t count = 0, first = 0;
  for (int64_t p = std::ssize(source.parameters()); p-- > 0;) {
    if (source.has_fp32_value(p)) continue;
    first = p;
    ++count;
  }
  if (count == 0) return;
  const std::string what =
      fmt::format("{} of {} parameters have no FP32 value, only their BF16 weights", count,
                  source.parameters().size());
  if (!allow_lossy_master) {
    throw InputError(fmt::format("{}: {}, as '{}'", where, what,
                                 source.parameters()[static_cast<size_t>(first)].name),
                     "take these with --allow-lossy-master, or ask for --bf16 --master none");
  }
  report.notes.push_back(what + ": taken, with zeros below them");
}

}  // namespace

Report convert_checkpoint(const fs::path& checkpoint, const fs::path& save, const Formats& formats,
                          bool allow_lossy_master) {
  const checkpoint::CheckpointReader reader(checkpoint);
  refuse_own_source(reader, save);
  refuse_other_checkpoints(save);
  TrainState state = reader.state();
  state.storage = target_storage(state.storage, formats);
  state.hyperparameters =
      settings_for(state.hyperparameters, reader.state().storage, state.storage);
  if (state.storage.weight == Dtype::kF32) state.fp32_params.clear();  // all of them are
  const auto source = open_checkpoint(reader);
  Report report{.source = reader.directory().string(), .notes = reader.warnings()};
  check_values(*source, state, report.source, allow_lossy_master, report);
  save_as(*source, state, inventory_of(reader.manifest()), save, report);
  return report;
}

Report import_from_hf(const fs::path& folder, const fs::path& save, const Formats& formats) {
  refuse_other_checkpoints(save);
  const arch::ModelConfig config = arch::load_hf_config(folder / hf::kConfigFile);
  const auto source = open_folder(folder, config);
  TrainState state;
  state.storage = target_storage(kFp32Storage, formats);
  state.hyperparameters = settings_for(nlohmann::json::object(), kFp32Storage, state.storage);
  state.model_config = nlohmann::json::parse(arch::to_hf_config(config));
  if (!hf::tokenizer_files(folder).empty()) {
    state.data["tokenizer"] = folder.string();
    state.hyperparameters["tokenizer"] = folder.string();
  }
  Report report{.source = folder.string()};
  Inventory before;
  for (int64_t p = 0; p < std::ssize(source->parameters()); ++p) {
    const auto dtype = source->dtype(TensorKind::kWeight, p);
    int64_t numel = 1;
    for (const int64_t size : source->parameters()[static_cast<size_t>(p)].shape) numel *= size;
    auto& weights = before.classes[TensorKind::kWeight];
    weights.formats.insert(dtype ? std::string(dtype_name(*dtype)) : "fp16");
    weights.bytes += numel * (dtype ? dtype_bytes(*dtype) : 2);
  }
  save_as(*source, state, before, save, report);
  return report;
}

}  // namespace halfstep::convert
