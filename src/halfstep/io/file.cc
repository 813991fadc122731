#include "halfstep/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "halfstep/core/error.h"

namespace halfstep::io {
namespace {

std::string hint_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free some space, or choose another folder";
    case ENOENT:
      return "check the path";
    case EACCES:
    case EPERM:
    case EROFS:
      return "check the rights of the file and its folder";
    case EIO:
      return "the disk or the network file system failed; see the system's log";
    default:
      return {};
  }
}

// The folder of a path; "." for a bare file name.
std::filesystem::path folder_of(const std::filesystem::path& path) {
  const auto parent = path.parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

// So much is written before the disk is asked to take it: small files cost no further call.
constexpr int64_t kStartWritingBytes = int64_t{4} << 20;

// The temporary name has the process in it, so that two writers never share one, and a dot in
// front, so that no pattern for finished files matches it.
std::string temporary_prefix(const std::filesystem::path& path) {
  return fmt::format(".{}.", path.filename().string());
}
constexpr std::string_view kTemporarySuffix = ".tmp";

bool is_temporary_of(const std::filesystem::path& path, std::string_view name) {
  const std::string prefix = temporary_prefix(path);
  if (!name.starts_with(prefix) || !name.ends_with(kTemporarySuffix)) return false;
  name.remove_prefix(prefix.size());
  if (name.size() <= kTemporarySuffix.size()) return false;
  name.remove_suffix(kTemporarySuffix.size());
  return name.find_first_not_of("0123456789") == name.npos;
}

// Removes the temporary files of `path` that no process holds any more. One that cannot be locked
// or removed stays: it is in nobody's way.
void remove_leftovers(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::directory_iterator it(folder_of(path), error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    if (!is_temporary_of(path, it->path().filename().string())) continue;
    const int fd = ::open(it->path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(it->path().c_str());
    ::close(fd);
  }
}

// Created and locked; again, if another process took it for a leftover in between.
FileDescriptor create_temporary(const std::filesystem::path& path) {
  for (;;) {
    FileDescriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
    static_cast<void>(file.try_lock());
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) throw_file_error("create", path);
    if (status.st_nlink > 0) return file;
  }
}

}  // namespace

void throw_file_error(std::string_view action, const std::filesystem::path& path) {
  const int error = errno;
  throw InputError(fmt::format("cannot {} '{}': {}", action, path.string(),
                               std::generic_category().message(error)),
                   hint_for(error));
}

FileDescriptor::FileDescriptor(const std::filesystem::path& path, int flags) : path_(path) {
  do {
    fd_ = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) throw_file_error((flags & O_CREAT) != 0 ? "create" : "open", path);
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

int64_t FileDescriptor::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) throw_file_error("read", path_);
  return status.st_size;
}

void FileDescriptor::write_all(std::span<const std::byte> data) const {
  while (!data.empty()) {
    const ssize_t n = ::write(fd_, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_file_error("write", path_);
    data = data.subspan(static_cast<size_t>(n));
  }
}

void FileDescriptor::read_at(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_, out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_file_error("read", path_);
    if (n == 0) {
      throw InputError(
          fmt::format("'{}' ends at byte {}, expected {} more", path_.string(), offset, out.size()),
          "the file is incomplete; copy or download it again");
    }
    out = out.subspan(static_cast<size_t>(n));
    offset += n;
  }
}

void FileDescriptor::start_writing(int64_t offset, int64_t bytes) const {
  ::sync_file_range(fd_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void FileDescriptor::start_reading(int64_t offset, int64_t bytes) const {
  ::posix_fadvise(fd_, offset, bytes, POSIX_FADV_WILLNEED);
}

void FileDescriptor::sync() const {
  if (::fsync(fd_) != 0) throw_file_error("flush", path_);
}

bool FileDescriptor::try_lock() const {
  return ::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

void sync_directory(const std::filesystem::path& directory) {
  FileDescriptor(directory, O_RDONLY | O_DIRECTORY).sync();
}

std::optional<int64_t> free_bytes(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(path, error);
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  struct statvfs status {};
  if (::statvfs(there.c_str(), &status) != 0 || status.f_blocks == 0) return std::nullopt;
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

void create_directories(const std::filesystem::path& path) {
  std::error_code error;
  if (path.empty() || std::filesystem::is_directory(path, error)) return;
  const auto parent = folder_of(path.has_filename() ? path : path.parent_path());
  io::create_directories(parent);  // ADL would find std::filesystem's
  std::filesystem::create_directory(path, error);
  errno = error.value();
  if (error) throw_file_error("create folder", path);
  sync_directory(parent);
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_file_error("rename to", to);
}

void remove_tree(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  errno = error.value();
  if (error) throw_file_error("remove", path);
}

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)),
      temporary_(folder_of(path_) /
                 fmt::format("{}{}{}", temporary_prefix(path_), ::getpid(), kTemporarySuffix)),
      file_(create_temporary(temporary_)) {
  remove_leftovers(path_);
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> data) {
  file_.write_all(data);
  written_ += static_cast<int64_t>(data.size());
  if (written_ - started_ < kStartWritingBytes) return;
  file_.start_writing(started_, written_ - started_);
  started_ = written_;
}

void AtomicFile::commit() {
  file_.sync();
  rename_path(temporary_, path_);
  committed_ = true;
  sync_directory(folder_of(path_));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes) {
  const FileDescriptor file(path, O_RDONLY);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_file_error("read", path);
  if (!S_ISREG(status.st_mode)) {
    throw InputError(fmt::format("'{}' is not a regular file", path.string()), "check the path");
  }
  if (status.st_size > max_bytes) {
    throw InputError(fmt::format("'{}' has {} bytes, expected at most {}", path.string(),
                                 status.st_size, max_bytes),
                     "is this the right file?");
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace halfstep::io
