#include "halfstep/checkpoint/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "halfstep/checkpoint/stored_dtype.h"
#include "halfstep/core/error.h"
#include "halfstep/io/checksum.h"

namespace halfstep::checkpoint {
namespace {

void check_slices(std::span<const TensorSlice> slices) {
  for (const TensorSlice& slice : slices) {
    if (const std::string fault = slice_fault(slice); !fault.empty()) {
      throw InternalError(fmt::format("checkpoint: {} of '{}': {}", tensor_kind_name(slice.kind),
                                      slice.name, fault));
    }
  }
}

// A whole slice keeps its matrix shape, so that other readers of the format see what it is; a range
// of a box has no shape but its length.
std::vector<int64_t> stored_shape(const Slice& slice) {
  if (!slice.whole_range()) return {slice.numel};
  if (slice.box == whole_box(slice.shape)) return slice.shape;
  if (slice.shape.size() < 2) return {slice.box.cols()};
  return {slice.box.rows(), slice.box.cols()};
}

// The order in the file: larger element types first, which keeps all of them aligned. Empty slices,
// such as a rank's share of a tiny parameter, are left out.
std::vector<const TensorSlice*> file_order(std::span<const TensorSlice> slices) {
  std::vector<const TensorSlice*> order;
  order.reserve(slices.size());
  for (const TensorSlice& slice : slices) {
    if (slice.numel > 0) order.push_back(&slice);
  }
  std::stable_sort(order.begin(), order.end(), [](const TensorSlice* a, const TensorSlice* b) {
    return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
  });
  return order;
}

std::map<std::string, std::string> shard_metadata() {
  return {{"halfstep_checkpoint_format", std::to_string(kFormatVersion)}};
}

// Writes one slice in chunks, straight from the caller's memory where it is there, and returns
// their checksums. The disk works on the chunks before (io::AtomicFile) while one is hashed and
// copied.
std::vector<uint64_t> write_slice(io::SafetensorsWriter& writer, const TensorSlice& slice,
                                  const std::atomic<bool>* give_up) {
  std::vector<uint64_t> checksums;
  std::vector<std::byte> produced;
  for (int64_t first = 0; first < slice.bytes(); first += kChunkBytes) {
    if (give_up != nullptr && give_up->load()) {
      throw Error(ExitCode::kCommunication, "checkpoint: given up, as the run ends");
    }
    const auto size = static_cast<size_t>(std::min(kChunkBytes, slice.bytes() - first));
    std::span<const std::byte> chunk;
    if (slice.produce) {
      produced.resize(size);
      slice.produce(first, produced);
      chunk = produced;
    } else {
      chunk = {static_cast<const std::byte*>(slice.data) + first, size};
    }
    checksums.push_back(io::checksum(chunk.data(), chunk.size()));
    writer.write(chunk);
  }
  return checksums;
}

}  // namespace

ShardWriter::ShardWriter(std::span<const TensorSlice> slices) {
  check_slices(slices);
  order_ = file_order(slices);
  specs_.reserve(order_.size());
  for (const TensorSlice* slice : order_) {
    specs_.push_back({format_slice_name(*slice), stored_dtype(slice->dtype), stored_shape(*slice)});
    shard_bytes_ += slice->bytes();
  }
  header_text_ = io::format_safetensors_header(specs_, shard_metadata(), &header_);
  shard_bytes_ += header_.data_start;
}

// Of each slice the manifest says what the header says, and as much again about its place; a
// checksum is 16 digits, its quotes and a comma.
int64_t ShardWriter::manifest_bytes() const {
  constexpr int64_t kChecksumBytes = 19, kMoreOfASlice = 128;
  int64_t bytes = 2 * header_.data_start + kMoreOfASlice * std::ssize(order_);
  for (const TensorSlice* slice : order_) bytes += kChecksumBytes * num_chunks(slice->bytes());
  return bytes;
}

void ShardWriter::write(const std::filesystem::path& path, Manifest& manifest,
                        const std::atomic<bool>* give_up) const {
  io::SafetensorsWriter writer(path, specs_, shard_metadata());
  const auto index = static_cast<int64_t>(manifest.shards.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    manifest.slices.push_back(
        {*order_[i], index, header_.tensors[i].offset, write_slice(writer, *order_[i], give_up)});
  }
  writer.finish();
  manifest.shards.push_back(
      {.file = path.filename().string(),
       .bytes = shard_bytes_,
       .header_bytes = header_.data_start,
       .header_checksum = io::checksum(header_text_.data(), header_text_.size())});
}

}  // namespace halfstep::checkpoint
