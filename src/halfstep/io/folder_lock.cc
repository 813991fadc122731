#include "halfstep/io/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <span>
#include <string>

#include "halfstep/core/error.h"

namespace halfstep::io {
namespace {

std::filesystem::path lock_path(const std::filesystem::path& folder) {
  io::create_directories(folder);
  return folder / ".lock";
}

std::string this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on {}\n", ::getpid(), host.data());
}

std::string owner(const std::filesystem::path& path) {
  std::string text = read_text_file(path, 4096);
  while (text.ends_with('\n')) text.pop_back();
  return text.empty() ? "starting just now" : text;
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder)
    : file_(lock_path(folder), O_RDWR | O_CREAT) {
  if (!file_.try_lock()) {
    throw UsageError(
        fmt::format("another run ({}) saves in '{}'", owner(file_.path()), folder.string()),
        "end it first, or give another --save");
  }
  if (::ftruncate(file_.get(), 0) != 0) throw_file_error("write", file_.path());
  const std::string me = this_process();
  file_.write_all(std::as_bytes(std::span(me)));
}

}  // namespace halfstep::io
