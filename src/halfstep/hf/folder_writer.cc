#include "halfstep/hf/folder_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "halfstep/core/error.h"
#include "halfstep/hf/model_files.h"
#include "halfstep/io/file.h"

namespace halfstep::hf {
namespace {

namespace fs = std::filesystem;

// "DIR/" and "DIR" are the same folder, and its sibling is DIR.saving.
fs::path without_slash(const fs::path& folder) {
  fs::path path = fs::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

// A file that an export writes, or its temporary form (io::AtomicFile).
bool is_of_an_export(std::string_view name) {
  if (name.starts_with('.') && name.ends_with(".tmp")) return true;
  return name == kConfigFile || name == kIndexFile || name == kWeightsFile ||
         (name.starts_with("model-") && name.ends_with(".safetensors")) || is_tokenizer_file(name);
}

// FOLDER.saving, made anew, and locked as long as this lives; removed unless it was kept. A lock
// and not a name of its own per process, so that what a killed export has left is found.
class SavingFolder {
 public:
  explicit SavingFolder(const fs::path& folder) : path_(folder.string() + ".saving") {
    io::create_directories(folder.parent_path());
    for (;;) {
      std::error_code error;
      left_behind_ = !fs::create_directory(path_, error) && !error;
      errno = error.value();
      if (error) io::throw_file_error("create folder", path_);
      lock_ = std::make_unique<io::FileDescriptor>(path_, O_RDONLY | O_DIRECTORY);
      if (!lock_->try_lock()) {
        throw UsageError(fmt::format("another process exports to '{}'", folder.string()),
                         "wait for it, or choose another folder");
      }
      // Between opening and locking its owner may have finished, and this be the finished folder.
      struct stat opened {
      }, named{};
      if (::fstat(lock_->get(), &opened) == 0 && ::stat(path_.c_str(), &named) == 0 &&
          opened.st_ino == named.st_ino) {
        break;
      }
    }
    remove_leftovers();
  }
  ~SavingFolder() {
    std::error_code ignored;
    if (!kept_) fs::remove_all(path_, ignored);
  }
  SavingFolder(const SavingFolder&) = delete;
  SavingFolder& operator=(const SavingFolder&) = delete;

  const fs::path& path() const { return path_; }
  bool was_left_behind() const { return left_behind_; }
  void keep() { kept_ = true; }

 private:
  // What a killed export has left. A folder of this name with anything else in it is somebody's.
  void remove_leftovers() const {
    std::error_code error;
    std::vector<fs::path> entries;
    for (fs::directory_iterator it(path_, error); !error && it != fs::directory_iterator();
         it.increment(error)) {
      entries.push_back(it->path());
    }
    errno = error.value();
    if (error) io::throw_file_error("read folder", path_);
    for (const fs::path& entry : entries) {
      if (is_of_an_export(entry.filename().string())) continue;
      throw UsageError(
          fmt::format("'{}' has '{}' in it, which no export has written", path_.string(),
                      entry.filename().string()),
          "an export is written there first: move that folder, or choose another name");
    }
    for (const fs::path& entry : entries) io::remove_tree(entry);
  }

  fs::path path_;
  std::unique_ptr<io::FileDescriptor> lock_;
  bool left_behind_ = false, kept_ = false;
};

std::string shard_file(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

void write_shard(const fs::path& path, const FolderContent& content,
                 std::span<const int64_t> members, const TensorProducer& produce) {
  // Larger element types first, which keeps all aligned.
  std::vector<int64_t> order(members.begin(), members.end());
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return io::safetensors_dtype_bytes(content.tensors[a].dtype) >
           io::safetensors_dtype_bytes(content.tensors[b].dtype);
  });
  std::vector<io::SafetensorsSpec> specs;
  for (const int64_t tensor : order) specs.push_back(content.tensors[tensor]);
  // `transformers` refuses files that do not say for which framework they are.
  io::SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  for (const int64_t tensor : order) {
    produce(tensor, [&](std::span<const std::byte> bytes) { writer.write(bytes); });
  }
  writer.finish();
}

std::string index_text(const FolderContent& content,
                       const std::vector<std::vector<int64_t>>& shards, int64_t total_bytes) {
  nlohmann::json weight_map = nlohmann::json::object();
  for (size_t s = 0; s < shards.size(); ++s) {
    for (const int64_t tensor : shards[s]) {
      weight_map[content.tensors[tensor].name] = shard_file(s, shards.size());
    }
  }
  const nlohmann::ordered_json index{{"metadata", {{"total_size", total_bytes}}},
                                     {"weight_map", std::move(weight_map)}};
  return index.dump(2) + "\n";
}

void copy_into(const fs::path& from, const fs::path& to) {
  const io::FileDescriptor source(from, O_RDONLY);
  io::AtomicFile target(to);
  std::vector<std::byte> piece;
  const int64_t size = source.size();
  for (int64_t done = 0; done < size; done += std::ssize(piece)) {
    piece.resize(static_cast<size_t>(std::min(int64_t{1} << 22, size - done)));
    source.read_at(done, piece);
    target.write(piece);
  }
  target.commit();
}

}  // namespace

std::vector<std::vector<int64_t>> plan_shards(std::span<const io::SafetensorsSpec> tensors,
                                              int64_t max_shard_bytes) {
  std::vector<std::vector<int64_t>> shards(1);
  int64_t in_shard = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = io::tensor_bytes(tensors[i]);
    // Not as a sum, which a limit near 2^63 would let overflow.
    if (!shards.back().empty() && bytes > max_shard_bytes - in_shard) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(static_cast<int64_t>(i));
    in_shard += bytes;
  }
  return shards;
}

void refuse_occupied(const fs::path& folder) {
  std::error_code error;
  const fs::path path = without_slash(folder);
  if (!fs::exists(path, error)) return;
  if (!fs::is_directory(path, error)) {
    throw UsageError(fmt::format("'{}' is no folder", folder.string()), "choose another name");
  }
  if (!fs::is_empty(path, error) || error) {
    throw UsageError(fmt::format("the folder '{}' is not empty", folder.string()),
                     "an export goes into a folder of its own: choose another, or delete this one");
  }
}

WrittenFolder write_folder(const fs::path& folder, const FolderContent& content,
                           const TensorProducer& produce) {
  const fs::path target = without_slash(folder);
  refuse_occupied(target);
  SavingFolder saving(target);
  refuse_occupied(target);  // again: another export may have ended before we had the lock
  WrittenFolder written;
  if (saving.was_left_behind()) {
    written.warnings.push_back(
        fmt::format("removed '{}', left by an export that was killed", saving.path().string()));
  }
  const auto shards = plan_shards(content.tensors, content.max_shard_bytes);
  for (size_t s = 0; s < shards.size(); ++s) {
    write_shard(saving.path() / shard_file(s, shards.size()), content, shards[s], produce);
    for (const int64_t tensor : shards[s]) {
      written.tensor_bytes += io::tensor_bytes(content.tensors[tensor]);
    }
  }
  written.num_files = std::ssize(shards);
  if (shards.size() > 1) {
    io::write_file_atomically(saving.path() / kIndexFile,
                              index_text(content, shards, written.tensor_bytes));
  }
  for (const fs::path& file : content.files) copy_into(file, saving.path() / file.filename());
  io::write_file_atomically(saving.path() / kConfigFile, content.config_json);
  io::rename_path(saving.path(), target);  // an empty folder of that name is replaced
  saving.keep();
  io::sync_directory(target.parent_path());
  return written;
}

void save_folder(const fs::path& folder, const arch::ModelConfig& config,
                 std::span<const WeightSlot> slots) {
  const std::vector<arch::Parameter> parameters = arch::parameter_list(config);
  check(slots.size() == parameters.size(), "save: one slot per parameter is needed");
  FolderContent content;
  for (size_t i = 0; i < slots.size(); ++i) {
    content.tensors.push_back(
        {parameters[i].name, weight_dtype(slots[i].dtype), parameters[i].shape});
  }
  content.config_json = config_text(config, content.tensors, nlohmann::json::object());
  write_folder(folder, content, [&](int64_t tensor, const Sink& sink) {
    sink({static_cast<const std::byte*>(slots[tensor].data),
          static_cast<size_t>(io::tensor_bytes(content.tensors[tensor]))});
  });
}

}  // namespace halfstep::hf
