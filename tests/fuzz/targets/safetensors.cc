// A safetensors file: what is accepted covers the file exactly, and means the same when it is
// written again.
#include "halfstep/io/safetensors.h"

#include <span>

#include "target.h"

namespace halfstep::fuzz {
namespace {

io::SafetensorsHeader parse(std::string_view file) {
  return io::parse_safetensors(std::as_bytes(std::span(file)), "f");
}

void check_cover(const io::SafetensorsHeader& header, size_t file_bytes) {
  int64_t end = header.data_start;
  for (const io::SafetensorsTensor& tensor : header.tensors) {
    check(tensor.offset == end, "tensors follow each other without gap or overlap");
    int64_t bytes = tensor.bytes / io::safetensors_dtype_bytes(tensor.dtype);
    check(bytes * io::safetensors_dtype_bytes(tensor.dtype) == tensor.bytes, "whole elements");
    for (const int64_t size : tensor.shape) {  // divided out, as the product may overflow
      check(size >= 0, "no size is negative");
      if (size > 0) {
        check(bytes % size == 0, "the shape divides the elements");
        bytes /= size;
      } else {
        check(tensor.bytes == 0, "a size of 0 makes no bytes");
      }
    }
    check(bytes <= 1, "the shape has as many elements as the data");
    end += tensor.bytes;
  }
  check(end == static_cast<int64_t>(file_bytes), "tensors end with the file");
}

void check_same_when_written_again(const io::SafetensorsHeader& header, std::string_view file) {
  std::vector<io::SafetensorsSpec> specs;
  for (const auto& tensor : header.tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  io::SafetensorsHeader written;
  std::string again = io::format_safetensors_header(specs, header.metadata, &written);
  again += file.substr(static_cast<size_t>(header.data_start));
  const io::SafetensorsHeader read = parse(again);
  const int64_t moved = read.data_start - header.data_start;
  check(read.metadata == header.metadata, "metadata round-trip");
  check(read.tensors.size() == header.tensors.size(), "tensors round-trip");
  for (size_t i = 0; i < read.tensors.size(); ++i) {
    const auto &a = header.tensors[i], &b = read.tensors[i];
    check(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes &&
              a.offset + moved == b.offset,
          "tensors round-trip");
  }
}

}  // namespace
}  // namespace halfstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep::fuzz;
  const std::string_view file = text_of(data, size);
  if (const auto header = accepted([&] { return parse(file); })) {
    check_cover(*header, size);
    check_same_when_written_again(*header, file);
  }
  return 0;
}
