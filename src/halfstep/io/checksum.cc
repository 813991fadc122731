#include "halfstep/io/checksum.h"

#include <xxhash.h>

namespace halfstep::io {

uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace halfstep::io
