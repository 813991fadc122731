// The one process that writes in a folder: a lock on the file .lock in it, which the system ends
// with the process, however it ends. The file stays, and says who had it last. Used by training for
// --save, on the rank that leads.
#pragma once

#include <filesystem>

#include "halfstep/io/file.h"

namespace halfstep::io {

class FolderLock {
 public:
  // Makes the folder if there is none. Throws UsageError naming the process that has the lock.
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  FileDescriptor file_;
};

}  // namespace halfstep::io
