#include "halfstep/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "halfstep/core/error.h"

namespace halfstep::io {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A file in memory: length, header as given, data.
std::vector<std::byte> file_of(const std::string& header, size_t data_bytes) {
  std::vector<std::byte> out(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  return out;
}

// The refusals have a corpus of their own: tests/fuzz. Here: what must be accepted.
TEST(Safetensors, AcceptsTensorsInAnyOrderScalarsAndEmptyOnes) {
  const auto header = parse_safetensors(
      file_of(
          R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[6,10]},)"
          R"("a":{"dtype":"BF16","shape":[3,1],"data_offsets":[0,6]},)"
          R"("none":{"dtype":"F64","shape":[4611686018427387904,0,4],"data_offsets":[6,6]}}    )",
          10),
      "f");
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "none");
  EXPECT_EQ(header.tensors[1].bytes, 0);
  EXPECT_EQ(header.tensors[2].name, "b");
  EXPECT_TRUE(header.tensors[2].shape.empty());
  EXPECT_EQ(header.tensors[2].offset, header.data_start + 6);
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(Safetensors, AcceptsAFileWithoutTensors) {
  EXPECT_TRUE(parse_safetensors(file_of("{}", 0), "f").tensors.empty());
}

TEST(Safetensors, EveryDtypeHasItsNameBack) {
  for (const char* name : {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32",
                           "U16", "U8", "BOOL"}) {
    const auto dtype = parse_safetensors_dtype(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(safetensors_dtype_name(*dtype), name);
    const int64_t bits = std::string(name) == "BOOL" ? 8 : std::atoi(std::strpbrk(name, "123468"));
    EXPECT_EQ(safetensors_dtype_bytes(*dtype) * 8, bits) << name;
  }
  EXPECT_FALSE(parse_safetensors_dtype("f32").has_value());
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  SafetensorsFileTest()
      : path_(fs::path(::testing::TempDir()) /
              ("safetensors_test." + std::to_string(::getpid()) + ".safetensors")) {
    fs::remove(path_);
  }
  ~SafetensorsFileTest() override { fs::remove(path_); }
  fs::path path_;
};

TEST_F(SafetensorsFileTest, RoundTripInPieces) {
  const std::vector<SafetensorsSpec> specs{
      {"w", SafetensorsDtype::kF32, {2, 3}},
      {"s", SafetensorsDtype::kU8, {}},
      {"e", SafetensorsDtype::kI16, {0}},
      {"name \"with\" \\ \n \xc3\xa9", SafetensorsDtype::kBF16, {2}}};
  std::vector<std::byte> data(24 + 1 + 4);
  for (size_t i = 0; i < data.size(); ++i) data[i] = std::byte(i * 37);

  SafetensorsWriter writer(path_, specs, {{"made by", "test"}});
  for (size_t i = 0; i < data.size(); i += 5) {
    writer.write(std::span(data).subspan(i, std::min<size_t>(5, data.size() - i)));
  }
  EXPECT_FALSE(fs::exists(path_));
  writer.finish();

  const SafetensorsFile file(path_);
  EXPECT_EQ(file.data_start() % 64, 0);
  EXPECT_EQ(file.metadata().at("made by"), "test");
  ASSERT_EQ(file.tensors().size(), specs.size());
  size_t offset = 0;
  for (const auto& spec : specs) {
    const SafetensorsTensor& tensor = file.at(spec.name);
    EXPECT_EQ(tensor.dtype, spec.dtype);
    EXPECT_EQ(tensor.shape, spec.shape);
    const auto bytes = file.data(tensor);
    EXPECT_EQ(std::memcmp(bytes.data(), data.data() + offset, bytes.size()), 0);
    offset += bytes.size();
  }
  EXPECT_EQ(offset, data.size());
  EXPECT_EQ(file.find("missing"), nullptr);
  try {
    file.at("missing");
    FAIL() << "expected InputError";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no tensor 'missing'"));
    EXPECT_THAT(error.what(), HasSubstr(path_.string()));
  }
}

TEST_F(SafetensorsFileTest, TheWriterHoldsItsPromise) {
  const std::vector<SafetensorsSpec> specs{{"w", SafetensorsDtype::kF32, {2}}};
  const std::vector<std::byte> data(9);
  {
    SafetensorsWriter writer(path_, specs);
    writer.write(std::span(data).first(7));
    EXPECT_THROW(writer.finish(), InternalError);
    EXPECT_THROW(writer.write(std::span(data).first(2)), InternalError);
  }
  EXPECT_FALSE(fs::exists(path_));
  const std::vector<SafetensorsSpec> twice{specs[0], specs[0]};
  EXPECT_THROW(SafetensorsWriter(path_, twice), InternalError);
  const std::vector<SafetensorsSpec> huge{{"w", SafetensorsDtype::kF32, {int64_t{1} << 62}}};
  EXPECT_THROW(SafetensorsWriter(path_, huge), InternalError);
}

TEST_F(SafetensorsFileTest, OffsetsAre64Bit) {
  // Only the header: a tensor of 2^33 elements and one behind it.
  SafetensorsHeader header;
  const std::vector<SafetensorsSpec> specs{
      {"big", SafetensorsDtype::kBF16, {int64_t{1} << 20, int64_t{1} << 13}},
      {"w", SafetensorsDtype::kF32, {1}}};
  format_safetensors_header(specs, {}, &header);
  EXPECT_EQ(header.tensors[1].offset, header.data_start + (int64_t{1} << 34));
}

}  // namespace
}  // namespace halfstep::io
