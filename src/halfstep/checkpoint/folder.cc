#include "halfstep/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <system_error>

#include "halfstep/core/error.h"
#include "halfstep/io/file.h"

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step_";
constexpr size_t kStepDigits = 8;

std::vector<std::string> entries(const fs::path& dir) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(dir, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw InputError(fmt::format("cannot read folder '{}': {}", dir.string(), error.message()),
                     "check the path");
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The iteration of a step's name with `suffix` behind it.
std::optional<int64_t> parse_suffixed(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  return parse_step_name(name.substr(0, name.size() - suffix.size()));
}

bool has_manifest(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kManifestFile, error);
}

bool is_latest_leftover(std::string_view name) {
  return name.starts_with(fmt::format(".{}.", kLatestFile)) && name.ends_with(".tmp");
}

// What a killed save has left, but for a replaced checkpoint that nothing has taken the place of.
bool is_to_be_removed(const fs::path& dir, std::string_view name) {
  if (const auto replaced = parse_suffixed(name, kReplaced)) {
    return has_manifest(dir / step_name(*replaced));
  }
  return parse_suffixed(name, kSaving) || parse_suffixed(name, kRemoving) ||
         is_latest_leftover(name);
}

}  // namespace

std::string step_name(int64_t iteration) { return fmt::format("{}{:08}", kStepPrefix, iteration); }

std::optional<int64_t> parse_step_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  int64_t iteration = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), iteration);
  if (digits.size() < kStepDigits || error != std::errc() || end != digits.data() + digits.size() ||
      iteration < 0 || step_name(iteration) != name) {
    return std::nullopt;
  }
  return iteration;
}

std::string shard_name(int64_t index, int64_t count) {
  return fmt::format("shard_{:05}_of_{:05}.safetensors", index + 1, count);
}

std::vector<int64_t> saved_iterations(const fs::path& dir) {
  std::vector<int64_t> out;
  for (const std::string& name : entries(dir)) {
    const auto iteration = parse_step_name(name);
    if (iteration && has_manifest(dir / name)) out.push_back(*iteration);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> folders_without_manifest(const fs::path& dir) {
  std::vector<std::string> out;
  for (const std::string& name : entries(dir)) {
    if (parse_step_name(name) && !has_manifest(dir / name)) out.push_back(name);
  }
  return out;
}

std::vector<fs::path> candidates(const fs::path& dir) {
  std::map<int64_t, std::vector<fs::path>, std::greater<>> by_iteration;
  const auto names = entries(dir);
  for (const std::string_view suffix : {std::string_view(), kReplaced}) {
    for (const std::string& name : names) {
      const auto iteration = parse_suffixed(name, suffix);
      if (iteration && has_manifest(dir / name)) by_iteration[*iteration].push_back(dir / name);
    }
  }
  std::vector<fs::path> out;
  std::error_code error;
  if (fs::is_regular_file(dir / kLatestFile, error)) {
    std::string latest = io::read_text_file(dir / kLatestFile, 4096);
    while (latest.ends_with('\n')) latest.pop_back();
    const auto it = by_iteration.find(parse_step_name(latest).value_or(-1));
    if (it != by_iteration.end()) {
      out = std::move(it->second);
      by_iteration.erase(it);
    }
  }
  for (const auto& [iteration, folders] : by_iteration) {
    out.insert(out.end(), folders.begin(), folders.end());
  }
  return out;
}

int64_t leftover_bytes(const fs::path& dir) {
  int64_t bytes = 0;
  for (const std::string& name : entries(dir)) {
    if (!is_to_be_removed(dir, name)) continue;
    std::error_code error;
    fs::recursive_directory_iterator it(dir / name, error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      std::error_code gone;
      const auto size = it->is_regular_file(gone) ? it->file_size(gone) : 0;
      if (!gone) bytes += static_cast<int64_t>(size);
    }
  }
  return bytes;
}

std::vector<std::string> recover(const fs::path& dir) {
  std::vector<std::string> warnings;
  for (const std::string& name : entries(dir)) {
    if (is_to_be_removed(dir, name)) {
      io::remove_tree(dir / name);
      warnings.push_back(
          fmt::format("removed '{}', left by a save that was killed", (dir / name).string()));
    } else if (const auto iteration = parse_suffixed(name, kReplaced)) {
      io::rename_path(dir / name, dir / step_name(*iteration));
      warnings.push_back(fmt::format("put '{}' back: the save that was to replace it was killed",
                                     (dir / step_name(*iteration)).string()));
    }
  }
  return warnings;
}

void remove_checkpoint(const fs::path& dir, int64_t iteration) {
  const fs::path removing = dir / (step_name(iteration) + std::string(kRemoving));
  io::rename_path(dir / step_name(iteration), removing);
  io::remove_tree(removing);
}

}  // namespace halfstep::checkpoint
