// A whole checkpoint folder (parts: manifest.json, two shards): what loads is just the bytes that
// the manifest points at, and every conversion that is asked for works or is refused.
#include <array>
#include <filesystem>
#include <map>
#include <set>

#include "halfstep/checkpoint/reader.h"
#include "halfstep/core/test_folder.h"
#include "target.h"

namespace halfstep::fuzz {
namespace {

using checkpoint::Box;
using checkpoint::CheckpointReader;
using checkpoint::MutableSlice;
using checkpoint::Slice;
using checkpoint::StoredSlice;
using checkpoint::TensorKind;

// Larger parameters are asked for in part.
constexpr int64_t kMaxElements = 1 << 14;

using Memory = std::vector<std::byte>;

// What to ask for of a parameter: all of it, or just the slice that is stored.
Slice request_for(const StoredSlice& stored) {
  const Slice whole = checkpoint::whole_slice(stored.kind, stored.name, stored.shape, stored.dtype);
  return whole.numel <= kMaxElements ? whole : static_cast<const Slice&>(stored);
}

std::optional<Memory> load(const CheckpointReader& reader, const Slice& request,
                           const checkpoint::LoadOptions& options) {
  Memory memory(static_cast<size_t>(request.bytes()), std::byte{0xEE});
  const MutableSlice slice{request, memory.data()};
  const bool loaded = accepted([&] { return reader.load({&slice, 1}, options); }).has_value();
  return loaded ? std::optional(std::move(memory)) : std::nullopt;
}

// The flat index in its parameter of element i of a slice.
int64_t element(const Slice& slice, int64_t i) {
  const int64_t at = slice.start + i;
  return (slice.box.row0 + at / slice.box.cols()) * checkpoint::whole_box(slice.shape).cols() +
         slice.box.col0 + at % slice.box.cols();
}

// Compares with the shards' bytes, element by element.
void check_loaded(const CheckpointReader& reader, const std::map<std::string, std::string>& shards,
                  const Slice& request, const Memory& memory) {
  const auto width = static_cast<size_t>(dtype_bytes(request.dtype));
  std::map<int64_t, const char*> stored;  // by flat index
  for (const StoredSlice& slice : reader.manifest().slices) {
    if (slice.kind != request.kind || slice.name != request.name || slice.numel > kMaxElements) {
      continue;
    }
    const auto& shard = reader.manifest().shards.at(static_cast<size_t>(slice.shard));
    const char* bytes = shards.at(shard.file).data() + slice.offset;
    for (int64_t i = 0; i < slice.numel; ++i) {
      stored[element(slice, i)] = bytes + static_cast<size_t>(i) * width;
    }
  }
  for (int64_t i = 0; i < request.numel; ++i) {
    check(std::memcmp(memory.data() + static_cast<size_t>(i) * width,
                      stored.at(element(request, i)), width) == 0,
          "what is loaded is what is stored");
  }
}

void convert(const CheckpointReader& reader, const Slice& request) {
  constexpr std::array kTargets{std::pair(TensorKind::kWeight, Dtype::kBF16),
                                std::pair(TensorKind::kWeight, Dtype::kF32),
                                std::pair(TensorKind::kMaster, Dtype::kF32),
                                std::pair(TensorKind::kRemainder, Dtype::kI16),
                                std::pair(TensorKind::kExpAvg, Dtype::kBF16),
                                std::pair(TensorKind::kExpAvg, Dtype::kF32),
                                std::pair(TensorKind::kExpAvgSq, Dtype::kUE6M10)};
  for (const auto& [kind, dtype] : kTargets) {
    Slice target = request;
    target.kind = kind;
    target.dtype = dtype;
    load(reader, target,
         {.convert_state = true, .allow_lossy_master = true, .allow_unrequested = true});
  }
}

void read(const std::filesystem::path& folder, const std::map<std::string, std::string>& shards) {
  const auto reader = accepted([&] { return CheckpointReader(folder); });
  if (!reader) return;
  std::set<std::string> converted;
  for (const StoredSlice& stored : reader->manifest().slices) {
    const Slice request = request_for(stored);
    if (request.numel > kMaxElements) continue;
    if (const auto memory = load(*reader, request, {.allow_unrequested = true})) {
      check_loaded(*reader, shards, request, *memory);
    }
    if (converted.insert(stored.name).second) convert(*reader, request);
  }
  accepted([&] {
    reader->verify();
    return true;
  });
}

}  // namespace
}  // namespace halfstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  static const TestFolder folder;
  const auto parts = fuzz::split_parts(fuzz::text_of(data, size), 3);
  const std::string step = "step_00000001/";
  folder.write(step + "manifest.json", parts[0]);
  folder.write(step + "a.safetensors", parts[1]);
  folder.write(step + "b.safetensors", parts[2]);
  fuzz::read(folder.path(), {{"a.safetensors", parts[1]}, {"b.safetensors", parts[2]}});
  return 0;
}
