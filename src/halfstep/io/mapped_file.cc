#include "halfstep/io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "halfstep/core/error.h"
#include "halfstep/io/file.h"

namespace halfstep::io {

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const FileDescriptor file(path, O_RDONLY);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_file_error("read", path);
  if (!S_ISREG(status.st_mode)) {
    throw InputError(fmt::format("'{}' is not a regular file", path.string()), "check the path");
  }
  if (status.st_size == 0) return;  // mmap refuses empty mappings
  const auto size = static_cast<size_t>(status.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) throw_file_error("map", path);
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

}  // namespace halfstep::io
