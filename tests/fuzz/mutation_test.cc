// Deterministic fuzzing of both parsers: valid files with a few random edits. The only allowed ends
// are a result and an InputError; under the sanitizers also no stray access.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "halfstep/checkpoint/manifest.h"
#include "halfstep/checkpoint/test_checkpoint.h"
#include "halfstep/core/error.h"
#include "halfstep/io/safetensors.h"
#include "seal.h"

namespace halfstep {
namespace {

// Pieces that change the meaning of a header more often than random bytes do.
const char* const kTokens[] = {"{",
                               "}",
                               "[",
                               "]",
                               ",",
                               ":",
                               "\"",
                               "-1",
                               "0",
                               "null",
                               "1e9",
                               "[0,0]",
                               "18446744073709551615",
                               "9223372036854775807",
                               "4611686018427387904",
                               "\\u0000",
                               "\"w\"",
                               "\"F32\"",
                               "\"shape\"",
                               "true",
                               "{}",
                               "[[[["};

std::string mutate(std::string text, std::mt19937_64& random) {
  const auto below = [&](size_t n) {
    return n == 0 ? size_t{0} : static_cast<size_t>(random() % n);
  };
  for (size_t edits = 1 + below(4); edits > 0; --edits) {
    const size_t at = below(text.size());
    switch (below(6)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        text.erase(at, 1 + below(16));
        break;
      case 2:
        text.insert(at, kTokens[below(std::size(kTokens))]);
        break;
      case 3:
        text.insert(at, text.substr(below(text.size()), below(64)));
        break;
      case 4:
        text.resize(at);
        break;
      case 5:
        if (!text.empty()) text[at] = static_cast<char>('0' + below(10));
        break;
    }
  }
  return text;
}

TEST(Mutation, SafetensorsAreReadOrRefused) {
  const std::vector<io::SafetensorsSpec> specs{{"w", io::SafetensorsDtype::kF32, {2, 3}},
                                               {"empty", io::SafetensorsDtype::kI16, {0, 4}},
                                               {"scalar", io::SafetensorsDtype::kBF16, {}}};
  io::SafetensorsHeader header;
  const std::string prefix = io::format_safetensors_header(specs, {{"k", "v"}}, &header);
  std::mt19937_64 random(1);
  int64_t read = 0, refused = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::string json = mutate(prefix.substr(8), random);
    uint64_t length = json.size();
    if (random() % 8 == 0) length ^= uint64_t{1} << random() % 64;
    std::string file(8, '\0');
    std::memcpy(file.data(), &length, 8);
    file += json + std::string(random() % 8 == 0 ? random() % 40 : 26, 'x');
    try {
      const auto parsed = io::parse_safetensors(std::as_bytes(std::span(file)), "f");
      int64_t end = parsed.data_start;
      for (const auto& tensor : parsed.tensors) {  // what is accepted covers the file exactly
        ASSERT_EQ(tensor.offset, end);
        end += tensor.bytes;
      }
      ASSERT_EQ(end, static_cast<int64_t>(file.size()));
      ++read;
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 1000);  // edits of white space, names and metadata
  EXPECT_GT(refused, 50'000);
}

TEST(Mutation, ManifestsAreReadOrRefused) {
  checkpoint::Manifest manifest{
      .state = checkpoint::test_state(5), .shards = {{"s", 1000, 200, 7}}, .slices = {}};
  manifest.slices.push_back(
      {checkpoint::whole_slice(checkpoint::TensorKind::kMaster, "w", {4, 6}, Dtype::kF32),
       0,
       200,
       {1}});
  const auto good = nlohmann::json::parse(checkpoint::format_manifest(manifest));
  std::mt19937_64 random(2);
  int64_t read = 0, refused = 0;
  for (int i = 0; i < 30'000; ++i) {
    std::string text = mutate(good.dump(), random);
    // Sealed again where it still is JSON, or else the checksum would end every case early.
    auto document = nlohmann::json::parse(text, nullptr, false);
    if (document.is_object()) {
      text = fuzz::sealed(document);
    }
    try {
      checkpoint::parse_manifest(text, "m");
      ++read;
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 10'000);
}

}  // namespace
}  // namespace halfstep
