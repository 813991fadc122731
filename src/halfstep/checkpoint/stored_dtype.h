// How an element type is called in a shard: its bytes as they are, under a safetensors name of the
// same width that other readers know.
#pragma once

#include "halfstep/core/dtype.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::checkpoint {

constexpr io::SafetensorsDtype stored_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return io::SafetensorsDtype::kF32;
    case Dtype::kBF16:
      return io::SafetensorsDtype::kBF16;
    case Dtype::kUE6M10:
      return io::SafetensorsDtype::kU16;  // has no name of its own there
    case Dtype::kI16:
      return io::SafetensorsDtype::kI16;
  }
  return io::SafetensorsDtype::kU8;
}

}  // namespace halfstep::checkpoint
