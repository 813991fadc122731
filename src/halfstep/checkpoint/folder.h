// The folder that holds a run's checkpoints: names in it, which of them count, and what a killed
// save may have left there (docs/checkpoint-format.md). Used by writer and reader; no tensors here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halfstep::checkpoint {

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::string_view kLatestFile = "latest";

// What stands behind a step's name while something is done to its folder.
inline constexpr std::string_view kSaving = ".saving";      // not complete yet
inline constexpr std::string_view kReplaced = ".replaced";  // the old one, while its place is taken
inline constexpr std::string_view kRemoving = ".removing";  // given up by the retention policy

// step_00000100: at least eight digits.
std::string step_name(int64_t iteration);
std::optional<int64_t> parse_step_name(std::string_view name);
// shard_00001_of_00001.safetensors, index from 0.
std::string shard_name(int64_t index, int64_t count);

// Iterations whose folder has a manifest, ascending. Empty if there is no such folder.
std::vector<int64_t> saved_iterations(const std::filesystem::path& dir);

// Steps' folders without a manifest. No save of ours leaves one: somebody has lost a part of it.
std::vector<std::string> folders_without_manifest(const std::filesystem::path& dir);

// The folders under `dir` that may be complete checkpoints, in the order in which a reader should
// try them: what `latest` names, then from the newest down; one that was being replaced stands
// behind the one that took its place.
std::vector<std::filesystem::path> candidates(const std::filesystem::path& dir);

// What files that `recover` would remove take.
int64_t leftover_bytes(const std::filesystem::path& dir);

// Brings `dir` in order after a killed save: removes what is incomplete or already replaced, puts
// back what was moved aside for nothing. Returns one warning per thing done. Only names that
// halfstep gives to temporary files and folders are touched.
std::vector<std::string> recover(const std::filesystem::path& dir);

// Deletes the checkpoint of an iteration so that it never looks complete while half of it is gone.
void remove_checkpoint(const std::filesystem::path& dir, int64_t iteration);

}  // namespace halfstep::checkpoint
