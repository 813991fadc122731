#include "halfstep/checkpoint/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace halfstep::checkpoint {

#if defined(__SSE2__)  // of every x86-64

void stream_copy(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kLine = 64, kVector = sizeof(__m128i);
  const size_t misaligned = reinterpret_cast<uintptr_t>(to) % kLine;
  const size_t head = misaligned == 0 ? 0 : std::min(bytes, kLine - misaligned);
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + kLine <= bytes; i += kLine) {
    __m128i line[kLine / kVector];
    std::memcpy(line, from + i, kLine);
    for (size_t k = 0; k < kLine / kVector; ++k) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + k * kVector), line[k]);
    }
  }
  std::memcpy(to + i, from + i, bytes - i);
  _mm_sfence();  // such stores are ordered with nothing else, not even the end of a thread's task
}

#else

void stream_copy(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace halfstep::checkpoint
