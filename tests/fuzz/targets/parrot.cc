// The child of the target tokenizer_pipe: writes the first part of a file, and one more after each
// message that it has read, whatever that says. It ends at a part that is less than a message: the
// other side waits for the rest and would ask nothing.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "target.h"

namespace {

// Magic, code, and the number of bytes that follow (src/halfstep/data/pipe_tokenizer.h).
constexpr size_t kHeaderBytes = 13;

uint64_t payload_bytes(const char* header) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, header + 5, sizeof bytes);
  return bytes;
}

bool is_message(const std::string& part) {
  return part.size() >= kHeaderBytes && part.size() - kHeaderBytes >= payload_bytes(part.data());
}

bool read_exactly(char* out, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::read(STDIN_FILENO, out, bytes);
    if (n <= 0) return false;
    out += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool read_message() {
  char header[kHeaderBytes];
  if (!read_exactly(header, sizeof header)) return false;
  std::string payload(payload_bytes(header), '\0');
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
    if (!is_message(part) || !read_message()) return 0;
  }
}
