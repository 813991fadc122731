// A shard that a disk or a copy has damaged: every flipped bit and every cut is found on load, and
// the message names the file and the tensor.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/test_checkpoint.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/core/error.h"

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string load_fault(const fs::path& dir, TestTensors& out) {
  try {
    CheckpointReader(dir).load(out.mutable_slices());
  } catch (const InputError& error) {
    return error.what();
  }
  return "loaded";
}

TEST(BitFlip, EverySampledFlipAndCutIsFoundAndNamed) {
  const fs::path dir = fs::path(::testing::TempDir()) / ("bit_flip." + std::to_string(::getpid()));
  fs::remove_all(dir);
  const TestTensors saved = test_model(3);
  const fs::path folder = save_alone(dir, test_state(1), saved.tensors()).directory;
  const CheckpointReader reader(folder);
  const StoredShard& shard = reader.manifest().shards[0];
  const fs::path path = folder / shard.file;
  TestTensors out = empty_like(saved);

  const int file = ::open(path.c_str(), O_RDWR);
  ASSERT_GE(file, 0);
  std::mt19937_64 random(4);
  for (int i = 0; i < 1200; ++i) {
    // The first thousand anywhere, the rest in the header, which is a small part of the file.
    const auto range = static_cast<uint64_t>(i < 1000 ? shard.bytes : shard.header_bytes);
    const auto at = static_cast<int64_t>(random() % range);
    char byte = 0;
    ASSERT_EQ(::pread(file, &byte, 1, at), 1);
    const char flipped = static_cast<char>(byte ^ (1 << random() % 8));
    ASSERT_EQ(::pwrite(file, &flipped, 1, at), 1);
    const std::string fault = load_fault(folder, out);
    ASSERT_THAT(fault, HasSubstr(path.string())) << "byte " << at;
    if (at < shard.header_bytes) {
      ASSERT_THAT(fault, HasSubstr("the header does not match its checksum"));
    } else {
      for (const StoredSlice& slice : reader.manifest().slices) {
        if (at >= slice.offset && at < slice.offset + slice.bytes()) {
          ASSERT_THAT(fault, HasSubstr("tensor '" + format_slice_name(slice) + "'"));
        }
      }
    }
    ASSERT_EQ(::pwrite(file, &byte, 1, at), 1);
  }
  ASSERT_EQ(load_fault(folder, out), "loaded");

  for (int i = 0; i < 200; ++i) {  // cuts, from the end so that each is one more
    const int64_t size = shard.bytes - 1 - i * (shard.bytes - 1) / 200;
    ASSERT_EQ(::ftruncate(file, size), 0);
    const std::string fault = load_fault(folder, out);
    ASSERT_THAT(fault, HasSubstr(path.string()));
    ASSERT_THAT(fault, HasSubstr("the tensor '"));
  }
  ::close(file);
  fs::remove_all(dir);
}

}  // namespace
}  // namespace halfstep::checkpoint
