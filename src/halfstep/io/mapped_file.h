// A file mapped into memory, read-only: opening costs nothing, pages are read when touched.
// The mapping stays valid when the file is renamed or deleted, not when it is truncated.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace halfstep::io {

class MappedFile {
 public:
  // Throws InputError naming the path if it is no readable regular file. An empty file is mapped
  // as an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace halfstep::io
