#include "halfstep/checkpoint/reader.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "halfstep/checkpoint/chunk_reader.h"
#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/load_plan.h"
#include "halfstep/checkpoint/load_slices.h"
#include "halfstep/checkpoint/stored_dtype.h"
#include "halfstep/core/error.h"
#include "halfstep/io/file.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// The manifest of a step's folder, if all its shards are there with the right size.
Manifest open_folder(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  Manifest manifest = parse_manifest(io::read_text_file(path), path.string());
  for (const StoredShard& shard : manifest.shards) {
    const fs::path file = folder / shard.file;
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    if (error) {
      throw InputError(fmt::format("{}: the shard is missing: {}", file.string(), error.message()),
                       "copy the whole folder, or load another checkpoint");
    }
    if (static_cast<int64_t>(bytes) != shard.bytes) {
      throw InputError(
          fmt::format("{}: got {} bytes, expected {}: the tensor '{}' and others are damaged",
                      file.string(), bytes, shard.bytes,
                      manifest.slices.empty() ? "" : format_slice_name(manifest.slices.back())),
          "copy the file again, or load another checkpoint");
    }
  }
  return manifest;
}

// The first candidate that is complete; the others are told as warnings.
std::pair<fs::path, Manifest> open_newest(const fs::path& dir, std::vector<std::string>& warnings) {
  std::error_code error;
  if (!fs::is_directory(dir, error)) {
    throw InputError(fmt::format("'{}' is no folder with checkpoints", dir.string()),
                     "check the path given to --load");
  }
  for (const fs::path& folder : candidates(dir)) {
    try {
      return {folder, open_folder(folder)};
    } catch (const NewerFormatError&) {
      throw;
    } catch (const InputError& fault) {
      warnings.push_back(fmt::format("skipped a checkpoint: {}", fault.what()));
    }
  }
  throw InputError(fmt::format("no complete checkpoint in '{}'{}{}", dir.string(),
                               warnings.empty() ? "" : "; ", fmt::join(warnings, "; ")),
                   "a checkpoint is a folder step_XXXXXXXX with a manifest.json");
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& path) {
  if (is_file(path / kManifestFile)) {
    directory_ = path;
    manifest_ = open_folder(path);
  } else {
    std::tie(directory_, manifest_) = open_newest(path, warnings_);
  }
  for (const StoredSlice& slice : manifest_.slices) parameters_.emplace(slice.name, slice.shape);
}

LoadReport CheckpointReader::load(std::span<const MutableSlice> slices,
                                  const LoadOptions& options) const {
  const std::string where = directory_.string();
  const StoredTensors stored(manifest_);
  LoadPlan plan = plan_load(stored, slices, options, where);
  LoadReport report{.conversions = std::move(plan.conversions), .split_ties = 0};
  ChunkReader chunks(directory_, manifest_);
  for (const PlannedSlice& planned : plan.slices) {
    load_slice(planned, stored, chunks, where, report);
  }
  check_split_weights(slices, where);
  return report;
}

void CheckpointReader::verify() const {
  ChunkReader chunks(directory_, manifest_);
  for (const StoredSlice& slice : manifest_.slices) chunks.verify(slice);
  // The shard's own header and the manifest describe the same bytes.
  std::vector<io::SafetensorsFile> files;
  size_t num_tensors = 0;
  for (const StoredShard& shard : manifest_.shards) {
    files.emplace_back(directory_ / shard.file);
    num_tensors += files.back().tensors().size();
  }
  for (const StoredSlice& slice : manifest_.slices) {
    const io::SafetensorsFile& file = files[static_cast<size_t>(slice.shard)];
    const io::SafetensorsTensor& tensor = file.at(format_slice_name(slice));
    if (tensor.offset != slice.offset || tensor.bytes != slice.bytes() ||
        tensor.dtype != stored_dtype(slice.dtype)) {
      throw InputError(fmt::format("{}: tensor '{}' is not what {} says", file.path().string(),
                                   tensor.name, kManifestFile),
                       "load another checkpoint");
    }
  }
  if (num_tensors != manifest_.slices.size()) {
    throw InputError(fmt::format("{}: the shards have {} tensors, {} has {}", directory_.string(),
                                 num_tensors, kManifestFile, manifest_.slices.size()),
                     "load another checkpoint");
  }
}

bool is_checkpoint(const fs::path& path) {
  if (is_file(path / kManifestFile)) return true;
  std::error_code error;
  return fs::is_directory(path, error) && !candidates(path).empty();
}

}  // namespace halfstep::checkpoint
