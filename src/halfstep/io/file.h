// Files read and written whole or as a stream, with every failure an Error that names the path.
// A file written here either appears complete under its name or not at all: data go to a temporary
// name in the same folder, are flushed to the disk (fsync), renamed, and the folder is flushed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace halfstep::io {

// Throws InputError "cannot ACTION 'PATH': reason" for the current errno, with a hint for a full
// disk, a missing file and missing rights.
[[noreturn]] void throw_file_error(std::string_view action, const std::filesystem::path& path);

// An open file descriptor; closed in the destructor.
class FileDescriptor {
 public:
  // `flags` as for open(2); O_CLOEXEC is added, new files get mode 0666 less the umask. Opening a
  // pipe waits for nobody.
  FileDescriptor(const std::filesystem::path& path, int flags);
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&&) = delete;

  int get() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }
  int64_t size() const;

  // All of `data` at the current position; interrupted and short writes are continued.
  void write_all(std::span<const std::byte> data) const;
  // Exactly out.size() bytes from `offset`; a shorter file is an InputError.
  void read_at(int64_t offset, std::span<std::byte> out) const;
  // Ask the disk to begin with bytes that are about to be flushed, or read, while this thread does
  // something else. Only a matter of speed: where it cannot be done nothing happens.
  void start_writing(int64_t offset, int64_t bytes) const;
  void start_reading(int64_t offset, int64_t bytes) const;
  void sync() const;
  // An advisory lock that ends with the descriptor; false if another one has it. True where the
  // file system has no locks.
  bool try_lock() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// Flushes a folder's entries (new names, renames) to the disk.
void sync_directory(const std::filesystem::path& directory);

// Bytes that this user may still write on the file system of a path, or of what is there of it.
// Nothing where the file system does not say. Quotas are not seen.
std::optional<int64_t> free_bytes(const std::filesystem::path& path);

// A folder and all above it that are missing, each flushed into the one above it.
void create_directories(const std::filesystem::path& path);
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// A file, or a folder with all that is in it; nothing happens if there is none.
void remove_tree(const std::filesystem::path& path);

// A file that appears under `path` at commit() and leaves nothing behind without it. What a killed
// process has left of the same file is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // The disk gets what is written as it comes, so that commit() has little left to wait for.
  void write(std::span<const std::byte> data);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  FileDescriptor file_;
  int64_t written_ = 0, started_ = 0;  // bytes; those that the disk has been asked to take
  bool committed_ = false;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// The whole file. Throws InputError if it is larger than max_bytes.
std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes = int64_t{1} << 30);

}  // namespace halfstep::io
