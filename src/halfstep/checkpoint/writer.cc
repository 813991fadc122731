#include "halfstep/checkpoint/writer.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <system_error>
#include <utility>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/manifest.h"
#include "halfstep/checkpoint/shard_writer.h"
#include "halfstep/comm/together.h"
#include "halfstep/core/error.h"
#include "halfstep/core/stopwatch.h"
#include "halfstep/io/file.h"
#include "halfstep/io/units.h"

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;

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
  Unfinished() = default;
  ~Unfinished() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  void begins(fs::path folder) { folder_ = std::move(folder); }
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

// Before anything is created or removed, as a disk that fills up on the way has cost everybody
// time. Rank 0 looks for all: they write into one folder.
void check_space(const fs::path& dir, int64_t needed, const SaveOptions& options) {
  const std::optional<int64_t> free = options.free_bytes(dir);
  if (!free) return;
  const int64_t available = *free + leftover_bytes(dir);  // which `recover` is about to remove
  if (needed <= available) return;
  throw InputError(fmt::format("'{}': the checkpoint needs {}, {} are free", dir.string(),
                               io::format_bytes(needed), io::format_bytes(available)),
                   "free some space, keep fewer checkpoints (--keep-last), or choose another "
                   "folder");
}

int64_t sum_over_ranks(comm::Communicator& ranks, int64_t value) {
  int64_t sum = 0;  // of integers, each below 2^53
  for (const double of_rank : comm::gather(ranks, std::array{static_cast<double>(value)})) {
    sum += static_cast<int64_t>(of_rank);
  }
  return sum;
}

}  // namespace

SaveResult save_checkpoint(const fs::path& dir, const TrainState& state,
                           std::span<const TensorSlice> slices, const RetentionPolicy& policy,
                           comm::Communicator& ranks, const SaveOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const bool leads = ranks.rank() == 0;
  SaveResult result;
  result.directory = dir / step_name(state.iteration);
  const fs::path saving(result.directory.string() + std::string(kSaving));
  Unfinished unfinished;
  Manifest manifest{.state = state, .shards = {}, .slices = {}};

  std::optional<ShardWriter> shard;
  comm::together(ranks, [&] { shard.emplace(slices); });
  const int64_t needed = sum_over_ranks(ranks, shard->shard_bytes() + shard->manifest_bytes());
  comm::together(ranks, [&] {
    if (!leads) return;
    check_space(dir, needed + std::ssize(format_manifest(manifest)), options);
    io::create_directories(dir);
    result.warnings = recover(dir);
    unfinished.begins(saving);
    io::create_directories(saving);
  });
  std::string part;  // what rank 0 is to add to the manifest
  comm::together(ranks, [&] {
    shard->write(saving / shard_name(ranks.rank(), ranks.size()), manifest, options.give_up);
    if (!leads) part = format_manifest(manifest);
  });
  const std::vector<std::string> parts = comm::gather_texts(ranks, part);
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
  result.milliseconds = milliseconds_since(start);
  return result;
}

}  // namespace halfstep::checkpoint
