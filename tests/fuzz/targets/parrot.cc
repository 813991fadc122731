// The child of the target tokenizer_pipe: writes the first part of a file, and one more after each
// message that it has read, whatever that says. It ends when no message comes: what it wrote may be
// half of something, for the rest of which the other side waits.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "target.h"

namespace {

constexpr int kPatienceMs = 50;

bool read_exactly(char* out, size_t bytes) {
  while (bytes > 0) {
    pollfd entry{STDIN_FILENO, POLLIN, 0};
    if (::poll(&entry, 1, kPatienceMs) <= 0) return false;
    const ssize_t n = ::read(STDIN_FILENO, out, bytes);
    if (n <= 0) return false;
    out += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

// Magic, code, and the number of bytes that follow (src/halfstep/data/pipe_tokenizer.h).
bool read_message() {
  char header[13];
  if (!read_exactly(header, sizeof header)) return false;
  uint64_t bytes = 0;
  std::memcpy(&bytes, header + 5, sizeof bytes);
  std::string payload(bytes, '\0');
  return read_exactly(payload.data(), payload.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::string input{std::istreambuf_iterator<char>(file), {}};
  for (const std::string& part : halfstep::fuzz::split_parts(input, 3)) {
    if (::write(STDOUT_FILENO, part.data(), part.size()) != static_cast<ssize_t>(part.size())) {
      return 1;
    }
    if (!read_message()) return 0;
  }
}
