#include "halfstep/data/index_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "halfstep/core/philox.h"
#include "halfstep/data/indexed_writer.h"
#include "halfstep/data/test_errors.h"

namespace halfstep::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// An .idx file part by part, so that a test can spoil one of them.
struct Parts {
  std::string header = index_header(TokenDtype::kUint16, 3, 2);
  std::vector<int32_t> lengths{4, 0, 6};
  std::vector<int64_t> pointers{0, 8, 8};
  std::vector<int64_t> documents{0, 2, 3};
  int64_t bin_bytes = 20;

  std::string bytes() const {
    std::string out = header;
    out.append(reinterpret_cast<const char*>(lengths.data()), lengths.size() * 4);
    out.append(reinterpret_cast<const char*>(pointers.data()), pointers.size() * 8);
    out.append(reinterpret_cast<const char*>(documents.data()), documents.size() * 8);
    return out;
  }
  std::string error() const {
    const std::string all = bytes();
    return input_error_of(
        [&] { IndexFile::parse(std::as_bytes(std::span(all)), bin_bytes, "x.idx"); });
  }
};

TEST(IndexFile, ReadsWhatItSays) {
  const std::string bytes = Parts().bytes();
  const auto index = IndexFile::parse(std::as_bytes(std::span(bytes)), 20, "x.idx");
  EXPECT_EQ(index.dtype(), TokenDtype::kUint16);
  EXPECT_EQ(index.num_sequences(), 3);
  EXPECT_EQ(index.num_documents(), 2);
  EXPECT_EQ(index.num_tokens(), 10);
  EXPECT_EQ(index.sequence_length(2), 6);
  EXPECT_EQ(index.sequence_pointer(2), 8);
  EXPECT_EQ(index.sequence_pointer(3), 20);
  EXPECT_EQ(index.document_sequence(1), 2);
}

TEST(IndexFile, EachInconsistencyHasItsMessage) {
  Parts parts;
  parts.header[0] = 'X';
  EXPECT_THAT(parts.error(), HasSubstr("MMIDIDX"));
  parts = {};
  parts.header[9] = 2;
  EXPECT_THAT(parts.error(), HasSubstr("version 2"));
  parts = {};
  parts.header[17] = 7;
  EXPECT_THAT(parts.error(), HasSubstr("float"));
  parts.header[17] = 9;
  EXPECT_THAT(parts.error(), HasSubstr("unknown type code 9"));
  parts.header[17] = static_cast<char>(TokenDtype::kInt32);
  EXPECT_THAT(parts.error(), HasSubstr("sequence 1 begins at byte 8, expected 16"));
  parts = {};
  parts.header = parts.header.substr(0, 33);
  parts.lengths.clear(), parts.pointers.clear(), parts.documents.clear();
  EXPECT_THAT(parts.error(), HasSubstr("33 bytes"));
  parts = {};
  parts.documents.pop_back();
  EXPECT_THAT(parts.error(), HasSubstr("do not fit"));
  parts = {};
  parts.documents.push_back(3);
  EXPECT_THAT(parts.error(), HasSubstr("expected 94"));
  parts = {};
  parts.header.replace(26, 8, std::string(8, '\0'));
  EXPECT_THAT(parts.error(), HasSubstr("no document entries"));
  parts = {};
  parts.lengths[1] = -1;
  EXPECT_THAT(parts.error(), HasSubstr("sequence 1 has the length -1"));
  parts = {};
  parts.pointers[1] = 6;
  EXPECT_THAT(parts.error(), HasSubstr("sequence 1 begins at byte 6, expected 8"));
  parts = {};
  parts.bin_bytes = 18;
  EXPECT_THAT(parts.error(), HasSubstr("ends at byte 20, but the .bin has 18"));
  parts.bin_bytes = 21;
  EXPECT_THAT(parts.error(), HasSubstr("ends at byte 20, but the .bin has 21"));
  parts = {};
  parts.documents[0] = 1;
  EXPECT_THAT(parts.error(), HasSubstr("first document begins with sequence 1"));
  parts = {};
  parts.documents[1] = 4;
  EXPECT_THAT(parts.error(), HasSubstr("document entry 1 is sequence 4"));
  parts = {};
  parts.documents[2] = 1;
  EXPECT_THAT(parts.error(), HasSubstr("document entry 2 is sequence 1"));
  parts = {};
  parts.documents[2] = 2;
  EXPECT_THAT(parts.error(), HasSubstr("documents end with sequence 2, expected 3"));
}

TEST(IndexFile, CountsThatOverflowAreRefused) {
  for (const uint64_t count :
       {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 62, uint64_t{1} << 60}) {
    for (const size_t field : {18, 26}) {
      Parts parts;
      std::memcpy(parts.header.data() + field, &count, 8);
      EXPECT_THAT(parts.error(), HasSubstr("do not fit")) << count;
    }
  }
}

TEST(IndexFile, ModesOfMultimodalDataAreRefused) {
  const std::string bytes = Parts().bytes() + std::string(3, '\0');
  const auto what =
      input_error_of([&] { IndexFile::parse(std::as_bytes(std::span(bytes)), 20, "x.idx"); });
  EXPECT_THAT(what, HasSubstr("multimodal"));
}

TEST(IndexFile, PointersAre64Bit) {
  std::vector<int64_t> pointers;
  const std::vector<int64_t> lengths(3, int64_t{1} << 30);
  EXPECT_EQ(sequence_pointers(lengths, 0, TokenDtype::kInt32, pointers), int64_t{3} << 32);
  EXPECT_THAT(pointers, ElementsAre(0, int64_t{1} << 32, int64_t{1} << 33));
}

TEST(IndexFile, PointersBeyond32BitsAreRead) {
  Parts parts;
  parts.header = index_header(TokenDtype::kInt32, 3, 3);
  parts.lengths.assign(3, 1 << 30);
  parts.pointers = {0, int64_t{1} << 32, int64_t{1} << 33};
  parts.documents = {0, 1, 2, 3};
  const std::string bytes = parts.bytes();
  const auto index = IndexFile::parse(std::as_bytes(std::span(bytes)), int64_t{3} << 32, "x.idx");
  EXPECT_EQ(index.num_tokens(), int64_t{3} << 30);
  parts.pointers[1] = 0;  // what 32 bits would hold
  parts.bin_bytes = int64_t{3} << 32;
  EXPECT_THAT(parts.error(), HasSubstr("expected 4294967296"));
}

TEST(IndexFile, TheTypeFollowsTheVocabulary) {
  EXPECT_EQ(token_dtype_for(257), TokenDtype::kUint16);
  EXPECT_EQ(token_dtype_for(65499), TokenDtype::kUint16);
  EXPECT_EQ(token_dtype_for(65500), TokenDtype::kInt32);
  EXPECT_EQ(token_dtype_for(151936), TokenDtype::kInt32);
}

// A file with some bytes changed is refused or describes only what is inside the .bin. Run under
// the address sanitizer by `make sanitize`.
TEST(IndexFile, ChangedBytesAreRefusedOrHarmless) {
  const std::string good = Parts().bytes();
  int64_t accepted = 0, refused = 0;
  for (int64_t trial = 0; trial < 50'000; ++trial) {
    const NoiseStream noise{.seed = 7, .step = trial};
    std::string bytes = good;
    const uint32_t edits = 1 + noise.bits16(0) % 4;
    for (uint32_t e = 0; e < edits; ++e) {
      const size_t at = noise.bits16(8 * e + 1) % bytes.size();
      const auto value = static_cast<char>(noise.bits16(8 * e + 2));
      switch (noise.bits16(8 * e + 3) % 4) {
        case 0:
          bytes[at] = value;
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (value & 7)));
          break;
        case 2:
          bytes.resize(at + 1);
          break;
        case 3:
          bytes.insert(at, 1 + (value & 15), value);
          break;
      }
    }
    try {
      const auto index = IndexFile::parse(std::as_bytes(std::span(bytes)), 20, "x.idx");
      ++accepted;
      ASSERT_EQ(index.sequence_pointer(index.num_sequences()), 20);
      for (int64_t s = 0; s < index.num_sequences(); ++s) {
        ASSERT_LE(index.sequence_pointer(s), index.sequence_pointer(s + 1));
      }
      for (int64_t d = 0; d < index.num_documents(); ++d) {
        ASSERT_LE(index.document_sequence(d), index.document_sequence(d + 1));
      }
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(accepted, 10);  // edits that change nothing, or a document's boundary
  EXPECT_GT(refused, 40'000);
}

}  // namespace
}  // namespace halfstep::data
