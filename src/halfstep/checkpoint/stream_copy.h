// A copy to memory that nobody reads soon. A plain store first reads the cache line that it
// overwrites, which is a third of a large copy's traffic; stores past the cache leave that out, and
// leave in the caches what training has there.
#pragma once

#include <cstddef>

namespace halfstep::checkpoint {

// As memcpy: no overlap, any alignment.
void stream_copy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace halfstep::checkpoint
