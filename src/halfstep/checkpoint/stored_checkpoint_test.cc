// The checkpoint of format version 1 that is kept in the repository still reads, to the bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "halfstep/checkpoint/reader.h"
#include "halfstep/core/error.h"
#include "halfstep/io/checksum.h"
#include "halfstep/io/json.h"

namespace halfstep::checkpoint {
namespace {

std::filesystem::path stored_checkpoint() {
  const char* source = std::getenv("HALFSTEP_SOURCE_DIR");
  check(source != nullptr, "HALFSTEP_SOURCE_DIR is not set; run this test through ctest");
  return std::filesystem::path(source) / "tests" / "data" / "checkpoint_v1";
}

TEST(StoredCheckpoint, EveryTensorOfVersion1IsWhatItsListingSays) {
  const CheckpointReader reader(stored_checkpoint());
  EXPECT_EQ(reader.state().iteration, 6);
  EXPECT_EQ(reader.state().t, 6);
  EXPECT_EQ(reader.state().storage.exp_avg_sq, Dtype::kUE6M10);
  EXPECT_EQ(reader.state().storage.master, MasterMode::kSplit);
  EXPECT_EQ(reader.manifest().shards.size(), 3u);
  reader.verify();

  const nlohmann::json listing = io::read_json_file(stored_checkpoint() / "listing.json");
  std::vector<std::vector<std::byte>> memory;
  std::vector<MutableSlice> slices;
  for (const auto& [key, about] : listing.items()) {
    const auto name = parse_slice_name(key);
    const auto dtype = parse_dtype(about["dtype"].get<std::string>());
    ASSERT_TRUE(name && dtype) << key;
    MutableSlice slice;
    static_cast<Slice&>(slice) =
        whole_slice(name->kind, name->name, about["shape"].get<std::vector<int64_t>>(), *dtype);
    slice.data = memory.emplace_back(static_cast<size_t>(slice.bytes())).data();
    slices.push_back(slice);
  }
  ASSERT_EQ(slices.size(), 47u);
  reader.load(slices);  // and so there is no tensor that the listing lacks
  size_t i = 0;
  for (const auto& [key, about] : listing.items()) {
    EXPECT_EQ(fmt::format("{:016x}", io::checksum(memory[i].data(), memory[i].size())),
              about["xxh3"].get<std::string>())
        << key;
    ++i;
  }
}

}  // namespace
}  // namespace halfstep::checkpoint
