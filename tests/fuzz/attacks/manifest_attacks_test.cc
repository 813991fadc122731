// One manifest per way to lie in it. The checksum of the manifest itself is made right each time:
// it protects against damage, not against an adversary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../seal.h"
#include "halfstep/checkpoint/manifest.h"
#include "halfstep/checkpoint/test_checkpoint.h"
#include "halfstep/core/error.h"

namespace halfstep::checkpoint {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Two parameters, one of them in two shares.
Manifest good_manifest() {
  Manifest manifest{.state = test_state(5),
                    .shards = {{"shard_00001_of_00001.safetensors", 1000, 200, 7}},
                    .slices = {}};
  const Slice w{TensorKind::kExpAvg, "w", {4, 6}, {0, 4, 0, 6}, 0, 10, Dtype::kF32};
  Slice rest = w;
  rest.start = 10;
  rest.numel = 14;
  manifest.slices.push_back({w, 0, 200, {1}});
  manifest.slices.push_back({rest, 0, 240, {2}});
  manifest.slices.push_back(
      {whole_slice(TensorKind::kWeight, "b", {3}, Dtype::kBF16), 0, 296, {3}});
  return manifest;
}

using fuzz::sealed;

struct Attack {
  const char* name;
  const char* pointer;  // JSON pointer of the value that is replaced, or removed by ""
  const char* value;
  const char* expected;
};

class ManifestAttack : public ::testing::TestWithParam<Attack> {};

TEST_P(ManifestAttack, IsRefused) {
  const Attack& attack = GetParam();
  json document = json::parse(format_manifest(good_manifest()));
  const json::json_pointer pointer(attack.pointer);
  if (*attack.value == '\0') {
    document[pointer.parent_pointer()].erase(pointer.back());
  } else {
    document[pointer] = json::parse(attack.value);
  }
  try {
    parse_manifest(sealed(document), "evil/manifest.json");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("evil/manifest.json"));
    EXPECT_THAT(error.what(), HasSubstr(attack.expected));
  }
}

const Attack kAttacks[] = {
    {"no_version", "/format_version", "", "'format_version' is missing"},
    {"version_0", "/format_version", "0", "at least 1"},
    {"version_text", "/format_version", "\"1\"", "expected an integer"},
    {"newer_version", "/format_version", "2", "checkpoint format 2"},
    {"negative_iteration", "/iteration", "-1", "iteration: got -1"},
    {"negative_t", "/t/default", "-1", "t.default: got -1"},
    {"negative_t_exception", "/t/exceptions/norm.weight", "-1", "t.exceptions.norm.weight"},
    {"t_beyond_64_bits", "/t/default", "9223372036854775808", "expected an integer"},
    {"t_fraction", "/t/default", "1.5", "expected an integer"},
    {"no_seed", "/seed", "", "'seed' is missing"},
    {"negative_seed", "/seed", "-1", "non-negative"},
    {"threads_beyond_31_bits", "/torch_threads", "4294967297", "torch_threads: got 4294967297"},
    {"unknown_storage", "/storage/exp_avg", "\"fp8\"", "storage.exp_avg"},
    {"unknown_master", "/storage/master", "\"half\"", "storage.master"},
    {"hyperparameters_no_object", "/hyperparameters", "3", "hyperparameters"},
    {"shards_no_array", "/shards", "{}", "shards"},
    {"no_slices", "/slices", "", "'slices' is missing"},
    {"shard_outside_of_the_folder", "/shards/0/file", "\"../../etc/passwd\"", "shards[0].file"},
    {"absolute_shard", "/shards/0/file", "\"/etc/passwd\"", "shards[0].file"},
    {"hidden_shard", "/shards/0/file", "\"..\"", "shards[0].file"},
    {"negative_header", "/shards/0/header_bytes", "-1", "header_bytes"},
    {"header_longer_than_shard", "/shards/0/header_bytes", "1001", "header_bytes"},
    {"short_checksum", "/shards/0/header_xxh3", "\"12\"", "16 hexadecimal digits"},
    {"checksum_no_hex", "/slices/0/xxh3/0", "\"zzzzzzzzzzzzzzzz\"", "16 hexadecimal digits"},
    {"too_few_checksums", "/slices/0/xxh3", "[]", "1 checksums"},
    {"too_many_checksums", "/slices/2/xxh3", "[\"0000000000000000\",\"0000000000000000\"]",
     "1 checksums"},
    {"unknown_kind", "/slices/0/kind", "\"grad\"", "slices[0].kind"},
    {"unknown_dtype", "/slices/0/dtype", "\"fp8\"", "slices[0].dtype"},
    {"evil_name", "/slices/0/name", "\"a/../b\"", "the name is empty or has one of"},
    {"negative_shape", "/slices/0/shape", "[-4,6]", "negative size"},
    {"shape_overflow", "/slices/0/shape", "[8589934592,8589934592]", "too many elements"},
    {"box_outside", "/slices/0/box", "[0,5,0,6]", "outside 4 x 6"},
    {"box_of_three", "/slices/0/box", "[0,4,0]", "[row0, row1, col0, col1]"},
    {"range_outside", "/slices/0/numel", "25", "outside the box"},
    {"empty_slice", "/slices/0/numel", "0", "numel: got 0"},
    {"start_overflow", "/slices/0/start", "9223372036854775807", "outside the box"},
    {"negative_start", "/slices/0/start", "-1", "outside the box"},
    {"other_bytes", "/slices/0/bytes", "44", "expected 40 (10 x fp32)"},
    {"shard_out_of_range", "/slices/0/shard", "1", "less than 1"},
    {"negative_shard", "/slices/0/shard", "-1", "less than 1"},
    {"data_in_the_header", "/slices/0/offset", "199", "data inside"},
    {"data_past_the_end", "/slices/0/offset", "961", "data inside"},
    {"offset_overflow", "/slices/0/offset", "9223372036854775807", "data inside"},
    {"overlapping_slices", "/slices/1/start", "9", "overlaps exp_avg/w+0"},
    {"shapes_disagree", "/slices/1/shape", "[4,7]", "its shape differs"},
};
INSTANTIATE_TEST_SUITE_P(Corpus, ManifestAttack, ::testing::ValuesIn(kAttacks),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Manifest, TheUnchangedOneIsAccepted) {
  const Manifest good = good_manifest();
  const Manifest read = parse_manifest(sealed(json::parse(format_manifest(good))), "m");
  ASSERT_EQ(read.slices.size(), good.slices.size());
  for (size_t i = 0; i < good.slices.size(); ++i) {
    EXPECT_EQ(static_cast<const Slice&>(read.slices[i]), static_cast<const Slice&>(good.slices[i]));
    EXPECT_EQ(read.slices[i].checksums, good.slices[i].checksums);
  }
}

TEST(Manifest, DtypesOfOneTensorAgree) {
  Manifest manifest = good_manifest();
  manifest.slices[1].dtype = Dtype::kBF16;
  EXPECT_THROW(parse_manifest(format_manifest(manifest), "m"), InputError);
}

TEST(Manifest, EveryFlippedBitIsRefusedOrMeansTheSame) {
  const std::string good = format_manifest(good_manifest());
  const json document = json::parse(good);
  int64_t refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      try {
        parse_manifest(bad, "m");
        EXPECT_EQ(json::parse(bad), document) << "byte " << i << " bit " << bit;  // white space
      } catch (const InputError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, static_cast<int64_t>(good.size()) * 7);
  for (size_t n = 0; n + 1 < good.size(); ++n) {
    ASSERT_THROW(parse_manifest(good.substr(0, n), "m"), InputError) << n;
  }
}

}  // namespace
}  // namespace halfstep::checkpoint
