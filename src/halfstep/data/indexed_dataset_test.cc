#include "halfstep/data/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "halfstep/core/test_folder.h"
#include "halfstep/data/indexed_writer.h"
#include "halfstep/data/memory_dataset.h"
#include "halfstep/data/test_errors.h"
#include "halfstep/data/verify.h"

namespace halfstep::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Documents = std::vector<std::vector<int32_t>>;

void write_pair(const std::string& prefix, TokenDtype dtype, const Documents& documents) {
  IndexedWriter writer(prefix, dtype);
  for (const auto& tokens : documents) writer.add_document(tokens);
  writer.finish();
}

Documents read_documents(const TokenDataset& data) {
  Documents documents;
  for (int64_t d = 0; d < data.num_documents(); ++d) {
    documents.emplace_back(data.document_start(d + 1) - data.document_start(d));
    data.read(data.document_start(d), documents.back());
  }
  return documents;
}

TEST(IndexedDataset, EveryTypeKeepsDocumentsAndTokens) {
  const TestFolder folder;
  for (const TokenDtype dtype : {TokenDtype::kUint8, TokenDtype::kInt8, TokenDtype::kInt16,
                                 TokenDtype::kUint16, TokenDtype::kInt32, TokenDtype::kInt64}) {
    const auto top = static_cast<int32_t>(max_token_id(dtype));
    const Documents documents{{0, 1, top}, {}, {top, 5}, {}};
    const std::string prefix = folder / token_dtype_name(dtype);
    write_pair(prefix, dtype, documents);
    const IndexedDataset data(prefix);
    EXPECT_EQ(data.index().dtype(), dtype);
    EXPECT_EQ(data.num_tokens(), 5);
    EXPECT_EQ(read_documents(data), documents) << token_dtype_name(dtype);
  }
}

TEST(IndexedDataset, HasTheFingerprintOfTheSameTokensInMemory) {
  const TestFolder folder;
  const Documents documents{{1, 2, 3}, {4}};
  write_pair(folder / "a", TokenDtype::kUint16, documents);
  MemoryDataset memory("memory");
  for (const auto& tokens : documents) memory.add_document(tokens);
  EXPECT_EQ(IndexedDataset(folder / "a").fingerprint(), memory.fingerprint());
}

TEST(IndexedDataset, ManyDocumentsPassThroughTheBuffers) {
  const TestFolder folder;
  constexpr int32_t kDocuments = 150'000;  // more than two chunks of a spool, 2 MB of tokens
  IndexedWriter writer(folder / "a", TokenDtype::kInt32);
  for (int32_t d = 0; d < kDocuments; ++d) {
    const std::vector<int32_t> tokens(d % 8, d);
    writer.add_document(tokens);
  }
  writer.finish();
  EXPECT_EQ(folder.num_files(), 2);
  const IndexedDataset data(folder / "a");
  ASSERT_EQ(data.num_documents(), kDocuments);
  int64_t start = 0;
  for (int32_t d = 0; d < kDocuments; ++d) {
    ASSERT_EQ(data.document_start(d), start);
    std::vector<int32_t> tokens(d % 8);
    data.read(start, tokens);
    ASSERT_EQ(tokens, std::vector<int32_t>(d % 8, d));
    start += d % 8;
  }
}

TEST(IndexedWriter, IdsThatTheTypeCannotHoldAreRefused) {
  const TestFolder folder;
  IndexedWriter writer(folder / "a", TokenDtype::kUint16);
  // 70000 would be read back as 4464.
  const auto what = input_error_of([&] { writer.add_document(std::vector<int32_t>{1, 70000}); });
  EXPECT_THAT(what, HasSubstr("70000"));
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{-1}), InputError);
}

TEST(IndexedWriter, WithoutFinishTheOldPairStays) {
  const TestFolder folder;
  write_pair(folder / "a", TokenDtype::kUint16, {{1, 2}});
  {
    IndexedWriter writer(folder / "a", TokenDtype::kUint16);
    writer.add_document(std::vector<int32_t>(2'000'000, 3));
  }
  EXPECT_EQ(read_documents(IndexedDataset(folder / "a")), (Documents{{1, 2}}));
  EXPECT_EQ(folder.num_files(), 2);
  write_pair(folder / "a", TokenDtype::kUint16, {{4}});
  EXPECT_EQ(read_documents(IndexedDataset(folder / "a")), (Documents{{4}}));
}

TEST(IndexedWriter, MergedPairsAreTheDocumentsOneAfterTheOther) {
  const TestFolder folder;
  write_pair(folder / "a", TokenDtype::kUint16, {{1, 2}, {3}});
  write_pair(folder / "b", TokenDtype::kUint16, {{}, {4, 5, 6}});
  write_pair(folder / "empty", TokenDtype::kUint16, {});
  write_pair(folder / "wide", TokenDtype::kInt32, {{1}});
  IndexedWriter writer(folder / "merged", TokenDtype::kUint16);
  for (const char* part : {"a", "empty", "b"}) writer.append(IndexedDataset(folder / part));
  writer.add_document(std::vector<int32_t>{7});
  const IndexedDataset wide(folder / "wide");
  EXPECT_THAT(input_error_of([&] { writer.append(wide); }), HasSubstr("int32, expected uint16"));
  writer.finish();
  const IndexedDataset merged(folder / "merged");
  EXPECT_EQ(read_documents(merged), (Documents{{1, 2}, {3}, {}, {4, 5, 6}, {7}}));
}

TEST(IndexedDataset, MissingFilesAreNamed) {
  const TestFolder folder;
  EXPECT_THAT(input_error_of([&] { IndexedDataset(folder / "none"); }), HasSubstr("none.bin"));
  write_pair(folder / "a", TokenDtype::kUint16, {{1}});
  std::filesystem::remove(folder / "a.idx");
  EXPECT_THAT(input_error_of([&] { IndexedDataset(folder / "a"); }), HasSubstr("a.idx"));
}

TEST(IndexedDataset, ATruncatedBinIsRefused) {
  const TestFolder folder;
  write_pair(folder / "a", TokenDtype::kUint16, {{1, 2, 3}});
  std::filesystem::resize_file(folder / "a.bin", 4);
  EXPECT_THAT(input_error_of([&] { IndexedDataset(folder / "a"); }),
              HasSubstr("ends at byte 6, but the .bin has 4"));
}

TEST(IndexedDataset, NegativeAndHugeIdsAreRefusedWhenRead) {
  const TestFolder folder;
  write_pair(folder / "a", TokenDtype::kInt32, {{1, 2, 3}});
  folder.write("a.bin", std::string("\1\0\0\0\xff\xff\xff\xff\3\0\0\0", 12));
  std::vector<int32_t> tokens(3);
  const IndexedDataset data(folder / "a");
  EXPECT_THAT(input_error_of([&] { data.read(0, tokens); }), HasSubstr("position 1"));
  write_pair(folder / "b", TokenDtype::kInt64, {{1}});
  folder.write("b.bin", std::string("\0\0\0\0\1\0\0\0", 8));
  const IndexedDataset wide(folder / "b");
  EXPECT_THROW(wide.read(0, std::span(tokens).first(1)), InputError);
}

TEST(Verify, CountsWhatIsThere) {
  const TestFolder folder;
  write_pair(folder / "a", TokenDtype::kUint16, {{1, 9}, {}, {7, 8, 9}});
  const auto report = verify(IndexedDataset(folder / "a"), 10, 9);
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.empty_documents, 1);
  EXPECT_EQ(report.sequences, 3);
  EXPECT_EQ(report.tokens, 5);
  EXPECT_EQ(report.max_id, 9);
  EXPECT_EQ(report.documents_with_eod, 2);
}

TEST(Verify, RefusesWhatTrainingWouldChokeOn) {
  const TestFolder folder;
  write_pair(folder / "a", TokenDtype::kUint16, {{1, 9}, {7, 8}, {6, 9}});
  const IndexedDataset data(folder / "a");
  EXPECT_NO_THROW(verify(data, 65536, std::nullopt));
  EXPECT_THAT(input_error_of([&] { verify(data, 65537, std::nullopt); }), HasSubstr("up to 65535"));
  EXPECT_THAT(input_error_of([&] { verify(data, 9, std::nullopt); }),
              HasSubstr("token 9 at position 1"));
  EXPECT_THAT(input_error_of([&] { verify(data, std::nullopt, 9); }),
              HasSubstr("document 1 does not end with the end marker 9 (2 of 3 do)"));
}

TEST(Verify, AnEmptyPairIsFine) {
  const TestFolder folder;
  write_pair(folder / "a", TokenDtype::kUint16, {});
  EXPECT_EQ(verify(IndexedDataset(folder / "a"), 10, 9).tokens, 0);
}

}  // namespace
}  // namespace halfstep::data
