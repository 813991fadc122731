// XXH3, 64 bit, seed 0: the checksum of everything in a checkpoint, and of weights that are compared.
#pragma once

#include <cstddef>
#include <cstdint>

namespace halfstep::io {

uint64_t checksum(const void* data, size_t bytes);

}  // namespace halfstep::io
