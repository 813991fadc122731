#include "halfstep/checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/manifest.h"
#include "halfstep/checkpoint/stored_dtype.h"
#include "halfstep/comm/together.h"
#include "halfstep/core/error.h"
#include "halfstep/io/checksum.h"
#include "halfstep/io/file.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// A whole slice keeps its matrix shape, so that other readers of the format see what it is; a range
// of a box has no shape but its length.
std::vector<int64_t> stored_shape(const Slice& slice) {
  if (!slice.whole_range()) return {slice.numel};
  if (slice.box == whole_box(slice.shape)) return slice.shape;
  if (slice.shape.size() < 2) return {slice.box.cols()};
  return {slice.box.rows(), slice.box.cols()};
}

// The order in the file: larger element types first, which keeps all of them aligned. Empty slices,
// such as a rank's share of a tiny parameter, are left out.
std::vector<const TensorSlice*> file_order(std::span<const TensorSlice> slices) {
  std::vector<const TensorSlice*> order;
  order.reserve(slices.size());
  for (const TensorSlice& slice : slices) {
    if (slice.numel > 0) order.push_back(&slice);
  }
  std::stable_sort(order.begin(), order.end(), [](const TensorSlice* a, const TensorSlice* b) {
    return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
  });
  return order;
}

// Writes one slice in chunks, straight from the caller's memory where it is there, and returns
// their checksums.
std::vector<uint64_t> write_slice(io::SafetensorsWriter& writer, const TensorSlice& slice) {
  std::vector<uint64_t> checksums;
  std::vector<std::byte> produced;
  for (int64_t first = 0; first < slice.bytes(); first += kChunkBytes) {
    const auto size = static_cast<size_t>(std::min(kChunkBytes, slice.bytes() - first));
    std::span<const std::byte> chunk;
    if (slice.produce) {
      produced.resize(size);
      slice.produce(first, produced);
      chunk = produced;
    } else {
      chunk = {static_cast<const std::byte*>(slice.data) + first, size};
    }
    checksums.push_back(io::checksum(chunk.data(), chunk.size()));
    writer.write(chunk);
  }
  return checksums;
}

// Writes a rank's shard and describes it in the manifest.
void write_shard(const fs::path& path, std::span<const TensorSlice> slices, Manifest& manifest) {
  const auto order = file_order(slices);
  std::vector<io::SafetensorsSpec> specs;
  specs.reserve(order.size());
  for (const TensorSlice* slice : order) {
    specs.push_back({format_slice_name(*slice), stored_dtype(slice->dtype), stored_shape(*slice)});
  }
  const std::map<std::string, std::string> metadata{
      {"halfstep_checkpoint_format", std::to_string(kFormatVersion)}};
  io::SafetensorsHeader header;
  const std::string header_text = io::format_safetensors_header(specs, metadata, &header);

  StoredShard shard{.file = path.filename().string(),
                    .bytes = header.data_start,
                    .header_bytes = header.data_start,
                    .header_checksum = io::checksum(header_text.data(), header_text.size())};
  io::SafetensorsWriter writer(path, specs, metadata);
  for (size_t i = 0; i < order.size(); ++i) {
    const TensorSlice& slice = *order[i];
    shard.bytes += slice.bytes();
    manifest.slices.push_back({slice, static_cast<int64_t>(manifest.shards.size()),
                               header.tensors[i].offset, write_slice(writer, slice)});
  }
  writer.finish();
  manifest.shards.push_back(std::move(shard));
}

// Puts the finished folder in its place, atomically if the place is free. If not, the old folder is
// moved aside first; `recover` and the reader know what that means if we are killed in between.
void move_into_place(const fs::path& dir, const fs::path& saving, const fs::path& target) {
  const fs::path replaced(target.string() + std::string(kReplaced));
  std::error_code error;
  const bool occupied = fs::exists(target, error);
  if (occupied) io::rename_path(target, replaced);
  io::rename_path(saving, target);
  io::sync_directory(dir);
  if (occupied) io::remove_tree(replaced);
}

// Removes the unfinished folder when a save fails. Errors on the way are not reported: the first
// failure is the one to know, and the next save tries again.
class Unfinished {
 public:
  explicit Unfinished(fs::path folder) : folder_(std::move(folder)) {}
  ~Unfinished() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  void finished() { folder_.clear(); }

 private:
  fs::path folder_;
};

// The manifest as text, read back as any reader will: what is written can be loaded again.
std::string checked_text(const Manifest& manifest) {
  std::string text = format_manifest(manifest);
  try {
    parse_manifest(text, std::string(kManifestFile));
  } catch (const InputError& error) {
    throw InternalError(
        fmt::format("checkpoint: the state to be saved is inconsistent: {}", error.what()));
  }
  return text;
}

void apply_retention(const fs::path& dir, int64_t saved, const RetentionPolicy& policy,
                     SaveResult& result) {
  for (const int64_t iteration : retention(saved_iterations(dir), saved, policy)) {
    try {
      remove_checkpoint(dir, iteration);
      result.removed.push_back(iteration);
    } catch (const InputError& error) {  // no reason to end a run whose save has succeeded
      result.warnings.push_back(error.what());
    }
  }
}

void check_slices(std::span<const TensorSlice> slices) {
  for (const TensorSlice& slice : slices) {
    if (const std::string fault = slice_fault(slice); !fault.empty()) {
      throw InternalError(fmt::format("checkpoint: {} of '{}': {}", tensor_kind_name(slice.kind),
                                      slice.name, fault));
    }
  }
}

// Adds another rank's shard, described in a manifest of its own.
void append_shard(const Manifest& part, Manifest& manifest) {
  const auto shard = static_cast<int64_t>(manifest.shards.size());
  manifest.shards.push_back(part.shards.at(0));
  for (const StoredSlice& slice : part.slices) {
    manifest.slices.push_back(slice);
    manifest.slices.back().shard = shard;
  }
}

// Ranks on machines that do not share the folder would each have written into one of their own.
void check_shards_are_here(const fs::path& saving, const Manifest& manifest) {
  for (const StoredShard& shard : manifest.shards) {
    std::error_code error;
    const auto bytes = fs::file_size(saving / shard.file, error);
    if (!error && static_cast<int64_t>(bytes) == shard.bytes) continue;
    throw InputError(
        fmt::format("{}: a rank has written {} bytes, {} are here", (saving / shard.file).string(),
                    shard.bytes, error ? 0 : bytes),
        "--save has to name the same folder on all machines, on a file system that they share");
  }
}

}  // namespace

SaveResult save_checkpoint(const fs::path& dir, const TrainState& state,
                           std::span<const TensorSlice> slices, const RetentionPolicy& policy,
                           comm::Communicator& ranks) {
  const bool leads = ranks.rank() == 0;
  SaveResult result;
  result.directory = dir / step_name(state.iteration);
  const fs::path saving(result.directory.string() + std::string(kSaving));
  Unfinished unfinished(leads ? saving : fs::path());

  comm::together(ranks, [&] {
    check_slices(slices);
    if (!leads) return;
    io::create_directories(dir);
    result.warnings = recover(dir);
    io::create_directories(saving);
  });
  Manifest manifest{.state = state, .shards = {}, .slices = {}};
  comm::together(ranks, [&] {
    write_shard(saving / shard_name(ranks.rank(), ranks.size()), slices, manifest);
  });
  const std::vector<std::string> parts =
      comm::gather_texts(ranks, leads ? std::string() : format_manifest(manifest));
  comm::together(ranks, [&] {
    if (!leads) return;
    for (size_t r = 1; r < parts.size(); ++r) {
      append_shard(parse_manifest(parts[r], fmt::format("the manifest of rank {}", r)), manifest);
    }
    check_shards_are_here(saving, manifest);
    const std::string text = checked_text(manifest);
    io::write_file_atomically(saving / kManifestFile, text);
    move_into_place(dir, saving, result.directory);
    unfinished.finished();
    io::write_file_atomically(dir / kLatestFile, step_name(state.iteration) + "\n");
    result.bytes = static_cast<int64_t>(text.size());
    for (const StoredShard& shard : manifest.shards) result.bytes += shard.bytes;
    apply_retention(dir, state.iteration, policy, result);
  });
  return result;
}

}  // namespace halfstep::checkpoint
