#include "process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace halfstep::apps {

void prepare_process() {
  // Each open takes the lowest number that is free.
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
  std::signal(SIGXFSZ, SIG_IGN);
}

void shorten_waits(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  // What GNU's OpenMP takes by itself when it knows of more threads than CPUs: some microseconds.
  if (error || ::setenv("GOMP_SPINCOUNT", "1000", 1) != 0) return;
  ::execv(program.c_str(), argv);
}

void print_error(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

int finish_output() {
  const bool failed_before = std::ferror(stdout) != 0;
  errno = 0;
  if (std::fflush(stdout) == 0 && !failed_before) return 0;
  return errno != 0 ? errno : EIO;
}

}  // namespace halfstep::apps
