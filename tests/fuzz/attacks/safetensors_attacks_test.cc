// One file per way to lie in a safetensors header. Each must be refused with an InputError that
// names the file and what is wrong; the intact neighbour of each lie is in safetensors_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "halfstep/core/error.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::io {
namespace {

using ::testing::HasSubstr;

struct Attack {
  const char* name;
  std::string header;
  size_t data_bytes;
  const char* expected;  // in the message
};

std::vector<std::byte> file_of(uint64_t length, const std::string& header, size_t data_bytes) {
  std::vector<std::byte> out(8 + header.size() + data_bytes);
  std::memcpy(out.data(), &length, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  return out;
}

void expect_refused(const std::vector<std::byte>& file, const char* expected) {
  try {
    parse_safetensors(file, "evil.safetensors");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("evil.safetensors"));
    EXPECT_THAT(error.what(), HasSubstr(expected));
  }
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

const std::vector<Attack>& attacks() {
  static const std::string kW = R"("w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  static const std::vector<Attack> kAttacks{
      {"no_object", "[1,2]", 0, "does not start with '{'"},
      {"leading_space", " {}", 0, "does not start with '{'"},
      {"empty_header", "", 0, "does not start with '{'"},
      {"bad_json", "{\"w\":", 0, "not valid JSON at byte"},
      {"text_after_json", "{} {}", 0, "not valid JSON at byte 4"},
      {"invalid_utf8", "{\"\xff\xfe\":1}", 0, "not valid JSON"},
      {"nul_padding", std::string("{}\0\0", 4), 0, "not valid JSON"},
      {"deep_nesting", "{\"w\":" + std::string(100'000, '['), 0, "nested deeper"},
      {"duplicate_tensor", "{" + kW + "," + kW + "}", 4, "\"w\" stands twice"},
      {"duplicate_by_escape",
       "{" + kW + R"(,"\u0077":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8,
       "\"w\" stands twice"},
      {"duplicate_key_inside",
       R"({"w":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}})", 4,
       "\"dtype\" stands twice"},
      {"tensor_is_no_object", R"({"w":3})", 0, "tensor 'w': got 3, expected a JSON object"},
      {"unknown_dtype", one("F31", "[1]", "[0,4]"), 4, "tensor 'w'.dtype: got \"F31\""},
      {"lowercase_dtype", one("f32", "[1]", "[0,4]"), 4, "tensor 'w'.dtype"},
      {"missing_shape", R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4,
       "'tensor 'w'.shape' is missing"},
      {"missing_offsets", R"({"w":{"dtype":"F32","shape":[1]}})", 4, "data_offsets' is missing"},
      {"unknown_key", R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4,
       "tensor 'w': unknown key 'x'"},
      {"negative_size", one("F32", "[-1]", "[0,4]"), 4, "tensor 'w'.shape"},
      {"two_negative_sizes", one("F32", "[-1,-1]", "[0,4]"), 4, "tensor 'w'.shape"},
      {"fractional_size", one("F32", "[1.0]", "[0,4]"), 4, "expected an array of integers"},
      {"size_beyond_64_bits", one("F32", "[18446744073709551617]", "[0,4]"), 4,
       "expected an array of integers"},
      {"size_2_to_64_minus_1", one("F32", "[18446744073709551615]", "[0,4]"), 4,
       "expected an array of integers"},
      {"shape_too_big_for_data", one("F32", "[1000,1000]", "[0,4]"), 4,
       "tensor 'w': got 4 bytes of data, expected 4000000 (F32 of shape [1000, 1000])"},
      {"shape_too_small_for_data", one("F32", "[1]", "[0,8]"), 8,
       "got 8 bytes of data, expected 4"},
      {"product_overflow", one("F32", "[8589934592,8589934592]", "[0,4]"), 4,
       "less than 2^63 bytes"},
      // 2^62 elements × 4 bytes wrap around to 0.
      {"bytes_overflow_to_zero", one("F32", "[4611686018427387904]", "[0,0]"), 0,
       "less than 2^63 bytes"},
      {"descending_offsets", one("F32", "[1]", "[10,2]"), 16, "0 <= begin <= end"},
      {"negative_offset", one("F32", "[1]", "[-4,0]"), 4, "0 <= begin <= end"},
      {"one_offset", one("F32", "[1]", "[4]"), 4, "[begin, end]"},
      {"offset_2_to_63", one("F32", "[1]", "[9223372036854775808,9223372036854775812]"), 4,
       "data_offsets"},
      {"end_at_int64_max", one("U8", "[9223372036854775807]", "[0,9223372036854775807]"), 4,
       "data end at byte 9223372036854775807 of the data, the file has only 4"},
      {"truncated_data", one("F32", "[2]", "[0,8]"), 7, "tensor 'w': data end at byte 8"},
      {"trailing_bytes", one("F32", "[1]", "[0,4]"), 5, "1 bytes after the last tensor 'w'"},
      {"data_without_tensors", "{}", 1, "1 bytes after the last tensor"},
      {"gap_at_the_start", one("F32", "[1]", "[4,8]"), 8, "tensor 'w': data start at byte 4"},
      {"gap_between", "{" + kW + R"(,"x":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})", 12,
       "tensor 'x': data start at byte 8 of the data, expected 4: a gap"},
      {"overlap", "{" + kW + R"(,"x":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", 6,
       "tensor 'x': data start at byte 2 of the data, expected 4: it overlaps"},
      {"same_data_twice", "{" + kW + R"(,"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
       "it overlaps"},
      {"empty_tensor_inside_another",
       "{" + kW + R"(,"x":{"dtype":"F32","shape":[0],"data_offsets":[2,2]}})", 4,
       "tensor 'x': data start at byte 2"},
      {"metadata_no_object", R"({"__metadata__":[1]})", 0, "__metadata__"},
      {"metadata_no_strings", R"({"__metadata__":{"a":1}})", 0,
       "__metadata__.a: got 1, expected a string"},
  };
  return kAttacks;
}

class SafetensorsAttack : public ::testing::TestWithParam<Attack> {};

TEST_P(SafetensorsAttack, IsRefused) {
  const Attack& attack = GetParam();
  expect_refused(file_of(attack.header.size(), attack.header, attack.data_bytes), attack.expected);
}

INSTANTIATE_TEST_SUITE_P(Corpus, SafetensorsAttack, ::testing::ValuesIn(attacks()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SafetensorsLength, LiesAreRefused) {
  expect_refused({}, "got 0 bytes, expected a safetensors file");
  expect_refused(std::vector<std::byte>(7), "got 7 bytes, expected a safetensors file");
  expect_refused(file_of(UINT64_MAX, "{}", 0), "header of 18446744073709551615 bytes");
  expect_refused(file_of(uint64_t{1} << 63, "{}", 0), "header of 9223372036854775808 bytes");
  expect_refused(file_of(100'000'001, "{}", 0), "expected at most 100000000");
  expect_refused(file_of(3, "{}", 0), "header of 3 bytes in a file of 10");
  expect_refused(file_of(1, "{}", 0), "not valid JSON");
}

}  // namespace
}  // namespace halfstep::io
