#include "halfstep/io/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "halfstep/core/error.h"
#include "halfstep/io/folder_lock.h"
#include "halfstep/io/mapped_file.h"

namespace halfstep::io {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// The folders that were flushed, in order: fsync below writes them down.
std::vector<fs::path>& flushed_folders() {
  static std::vector<fs::path> folders;
  return folders;
}

class FileTest : public ::testing::Test {
 protected:
  FileTest() : dir_(fs::path(::testing::TempDir()) / ("file_test." + std::to_string(::getpid()))) {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  ~FileTest() override { fs::remove_all(dir_); }

  int64_t entries() const { return std::distance(fs::directory_iterator(dir_), {}); }

  fs::path dir_;
};

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no InputError";
}

TEST_F(FileTest, WritesAtomicallyAndReadsBack) {
  write_file_atomically(dir_ / "a", "one");
  write_file_atomically(dir_ / "a", std::string("two\0three", 9));
  EXPECT_EQ(read_text_file(dir_ / "a"), std::string("two\0three", 9));
  EXPECT_EQ(entries(), 1);
}

TEST_F(FileTest, AppearsOnlyAtCommit) {
  AtomicFile file(dir_ / "a");
  file.write("text");
  EXPECT_FALSE(fs::exists(dir_ / "a"));
  file.commit();
  EXPECT_EQ(read_text_file(dir_ / "a"), "text");
}

TEST_F(FileTest, AbandonedWriteKeepsTheOldFileAndLeavesNothing) {
  write_file_atomically(dir_ / "a", "old");
  { AtomicFile(dir_ / "a").write("new"); }
  EXPECT_EQ(read_text_file(dir_ / "a"), "old");
  EXPECT_EQ(entries(), 1);
}

// A file size limit makes write(2) fail half-way like a full disk; in a child, since it stays set.
TEST_F(FileTest, WhatAKilledWriterLeftIsRemovedAndALiveWritersFileIsNot) {
  AtomicFile alive(dir_ / "a");  // .a.PID.tmp, locked
  const fs::path dead = dir_ / ".a.1.tmp";
  const fs::path others[] = {dir_ / ".b.1.tmp", dir_ / ".a.tmp", dir_ / ".a.x.tmp",
                             dir_ / "a.1.tmp"};
  std::ofstream(dead) << "half";
  for (const fs::path& other : others) std::ofstream(other) << "not ours";
  // As another process: the name has another number in it.
  const pid_t child = ::fork();
  if (child == 0) {
    write_file_atomically(dir_ / "a", "theirs");
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(fs::exists(dead));
  for (const fs::path& other : others) EXPECT_TRUE(fs::exists(other)) << other;
  alive.write("ours");
  alive.commit();
  EXPECT_EQ(read_text_file(dir_ / "a"), "ours");
}

TEST_F(FileTest, APipeIsRefusedWithoutWaitingForItsWriter) {
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  ::alarm(20);  // opening it to read would wait for ever
  EXPECT_THROW(read_text_file(dir_ / "pipe"), InputError);
  EXPECT_THROW(MappedFile{dir_ / "pipe"}, InputError);
  ::alarm(0);
}

TEST_F(FileTest, OneProcessWritesInAFolderAndItsEndFreesIt) {
  const fs::path folder = dir_ / "run/deep";
  const auto second = [&]() -> std::string {
    try {
      FolderLock lock(folder);
      return "free";
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    FolderLock lock(folder);
    static_cast<void>(!::write(ready[1], "x", 1));
    ::pause();
  }
  char x;
  ASSERT_EQ(::read(ready[0], &x, 1), 1);
  EXPECT_THAT(second(), HasSubstr("another run (process " + std::to_string(child) + " on "));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(second(), "free");
  EXPECT_EQ(second(), "free");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(FileTest, FailedWriteNamesThePathAndLeavesNothing) {
  write_file_atomically(dir_ / "a", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string what =
        message_of([&] { write_file_atomically(dir_ / "a", std::string(5000, 'x')); });
    std::_Exit(
        what.find("cannot write") == 0 && what.find((dir_ / ".a.").string()) != what.npos ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_text_file(dir_ / "a"), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(FileTest, FullDiskIsNamedWithAHint) {
  const FileDescriptor full("/dev/full", O_WRONLY);
  const std::string text = "x";
  try {
    full.write_all(std::as_bytes(std::span(text)));
    FAIL() << "expected InputError";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "cannot write '/dev/full': No space left on device");
    EXPECT_THAT(error.hint(), HasSubstr("free some space"));
  }
}

TEST_F(FileTest, MissingFileAndMissingFolderNameThePath) {
  EXPECT_THAT(message_of([&] { read_text_file(dir_ / "none"); }),
              testing::AllOf(HasSubstr("cannot open"), HasSubstr((dir_ / "none").string()),
                             HasSubstr("No such file")));
  EXPECT_THAT(message_of([&] { write_file_atomically(dir_ / "no" / "a", "x"); }),
              testing::AllOf(HasSubstr("cannot create"), HasSubstr((dir_ / "no").string())));
}

TEST_F(FileTest, RefusesFoldersAndTooLargeFiles) {
  EXPECT_THAT(message_of([&] { read_text_file(dir_); }), HasSubstr("not a regular file"));
  EXPECT_THAT(message_of([&] { MappedFile{dir_}; }), HasSubstr("not a regular file"));
  write_file_atomically(dir_ / "a", "12345");
  EXPECT_THAT(message_of([&] { read_text_file(dir_ / "a", 4); }),
              HasSubstr("has 5 bytes, expected at most 4"));
}

TEST_F(FileTest, ReadAtPastTheEndIsAnError) {
  write_file_atomically(dir_ / "a", "12345");
  const FileDescriptor file(dir_ / "a", O_RDONLY);
  std::array<std::byte, 3> out{};
  file.read_at(2, out);
  EXPECT_EQ(out[0], std::byte{'3'});
  EXPECT_THAT(message_of([&] { file.read_at(3, out); }), HasSubstr("ends at byte 5"));
}

TEST_F(FileTest, MappedFileShowsTheBytesAndOutlivesTheName) {
  write_file_atomically(dir_ / "a", "12345");
  write_file_atomically(dir_ / "empty", "");
  const MappedFile file(dir_ / "a");
  fs::remove(dir_ / "a");
  ASSERT_EQ(file.bytes().size(), 5u);
  EXPECT_EQ(file.bytes()[4], std::byte{'5'});
  EXPECT_TRUE(MappedFile(dir_ / "empty").bytes().empty());
}

// A new folder outlives a power cut only if the one that holds it is flushed.
TEST_F(FileTest, NewFoldersAreFlushedIntoTheirParents) {
  using ::testing::ElementsAre;
  flushed_folders().clear();
  io::create_directories(dir_ / "a/b");
  EXPECT_THAT(flushed_folders(), ElementsAre(fs::canonical(dir_), fs::canonical(dir_ / "a")));
  io::create_directories(dir_ / "a/b");
  io::create_directories(dir_ / "a/c/");
  EXPECT_EQ(flushed_folders().size(), 3u);
  EXPECT_TRUE(fs::is_directory(dir_ / "a/c"));
  write_file_atomically(dir_ / "file", "");
  EXPECT_THAT(message_of([&] { io::create_directories(dir_ / "file/d"); }),
              HasSubstr("cannot create folder"));
}

}  // namespace
}  // namespace halfstep::io

// Stands before libc's: the program's own definition is the one that everything in it calls.
extern "C" int fsync(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode)) {
    halfstep::io::flushed_folders().push_back(
        std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor)));
  }
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}
