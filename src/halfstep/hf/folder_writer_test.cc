#include "halfstep/hf/folder_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <set>

#include "halfstep/core/error.h"
#include "halfstep/core/test_folder.h"
#include "halfstep/hf/model_files.h"
#include "halfstep/io/json.h"

namespace halfstep::hf {
namespace {

namespace fs = std::filesystem;
using io::SafetensorsDtype;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

arch::ModelConfig small_config(bool tied) {
  return {.family = arch::Family::kQwen3,
          .num_layers = 2,
          .hidden_size = 8,
          .ffn_hidden_size = 12,
          .num_attention_heads = 2,
          .num_query_groups = 1,
          .head_dim = 4,
          .vocab_size = 33,
          .max_position_embeddings = 64,
          .qk_norm = true,
          .tie_embeddings = tied};
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename());
  }
  return names;
}

class FolderWriterTest : public ::testing::Test {
 protected:
  // Element i of parameter p, as its bits.
  static uint16_t bits(int64_t p, int64_t i) { return static_cast<uint16_t>(p * 1009 + i * 7); }

  // All parameters in BF16, of `small_config`.
  static FolderContent content(bool tied, int64_t max_shard_bytes) {
    FolderContent content;
    for (const arch::Parameter& p : arch::parameter_list(small_config(tied))) {
      content.tensors.push_back({p.name, SafetensorsDtype::kBF16, p.shape});
    }
    content.config_json = config_text(small_config(tied), content.tensors, {});
    content.max_shard_bytes = max_shard_bytes;
    return content;
  }
  // In pieces of 100 bytes.
  static void produce(const FolderContent& content, int64_t p, const Sink& sink) {
    int64_t numel = 1;
    for (const int64_t size : content.tensors[p].shape) numel *= size;
    std::vector<uint16_t> piece;
    for (int64_t i = 0; i < numel; ++i) {
      piece.push_back(bits(p, i));
      if (piece.size() == 50 || i + 1 == numel) {
        sink(std::as_bytes(std::span(piece)));
        piece.clear();
      }
    }
  }
  WrittenFolder write(const FolderContent& content) const {
    return write_folder(target_, content,
                        [&](int64_t p, const Sink& sink) { produce(content, p, sink); });
  }
  void expect_complete(bool tied) const {
    const arch::ModelConfig config = arch::load_hf_config(target_ / "config.json");
    EXPECT_EQ(config, small_config(tied));
    const FolderReader reader(target_, config);
    const auto parameters = arch::parameter_list(config);
    for (int64_t p = 0; p < std::ssize(parameters); ++p) {
      std::vector<uint16_t> values(static_cast<size_t>(parameters[p].numel()));
      reader.load(p, {values.data(), Dtype::kBF16});
      for (int64_t i = 0; i < std::ssize(values); ++i) ASSERT_EQ(values[i], bits(p, i)) << p;
    }
  }

  TestFolder folder_;
  const fs::path target_ = folder_.path() / "out" / "model";
};

TEST(PlanShards, FillsFilesInOrderAndSplitsNoTensor) {
  const auto tensor = [](int64_t elements) {
    return io::SafetensorsSpec{"", SafetensorsDtype::kBF16, {elements}};
  };
  const std::vector<io::SafetensorsSpec> tensors{tensor(3), tensor(2), tensor(1), tensor(50),
                                                 tensor(4)};
  EXPECT_THAT(plan_shards(tensors, 10),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3), ElementsAre(4)));
  EXPECT_THAT(plan_shards(tensors, 12),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3), ElementsAre(4)));
  EXPECT_THAT(plan_shards(tensors, INT64_MAX), ElementsAre(ElementsAre(0, 1, 2, 3, 4)));
  EXPECT_EQ(plan_shards(tensors, 1).size(), 5u);
}

TEST_F(FolderWriterTest, WhatIsWrittenReadsBackBitForBit) {
  for (const bool tied : {false, true}) {
    EXPECT_EQ(write(content(tied, kMaxShardBytes)).num_files, 1);
    EXPECT_EQ(names_in(target_), (std::set<std::string>{"config.json", "model.safetensors"}));
    expect_complete(tied);
    fs::remove_all(target_);
  }
}

TEST_F(FolderWriterTest, ShardsAndTheirIndexAreThoseOfTransformers) {
  const FolderContent sharded = content(false, 1000);
  const WrittenFolder written = write(sharded);
  ASSERT_GT(written.num_files, 2);
  expect_complete(false);

  const nlohmann::json index = io::read_json_file(target_ / "model.safetensors.index.json");
  int64_t bytes = 0;
  std::set<std::string> files{"config.json", "model.safetensors.index.json"};
  for (const io::SafetensorsSpec& tensor : sharded.tensors) {
    const std::string file = index["weight_map"][tensor.name];
    files.insert(file);
    EXPECT_EQ(io::SafetensorsFile(target_ / file).metadata().at("format"), "pt");
    bytes += io::SafetensorsFile(target_ / file).at(tensor.name).bytes;
  }
  EXPECT_EQ(index["weight_map"].size(), sharded.tensors.size());
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
  EXPECT_EQ(written.tensor_bytes, bytes);
  EXPECT_EQ(names_in(target_), files);
  EXPECT_EQ(std::ssize(files), written.num_files + 2);
  EXPECT_TRUE(
      files.contains("model-00001-of-0000" + std::to_string(written.num_files) + ".safetensors"));
}

TEST_F(FolderWriterTest, WhatFailsLeavesNothing) {
  const FolderContent all = content(false, 500);
  EXPECT_THROW(write_folder(target_, all,
                            [&](int64_t p, const Sink& sink) {
                              if (p == std::ssize(all.tensors) - 1) throw InputError("damaged");
                              produce(all, p, sink);
                            }),
               InputError);
  EXPECT_TRUE(fs::is_empty(target_.parent_path()));
  FolderContent with_file = all;
  with_file.files = {folder_ / "no such tokenizer.json"};
  EXPECT_THROW(write(with_file), InputError);
  EXPECT_TRUE(fs::is_empty(target_.parent_path()));
}

TEST_F(FolderWriterTest, AKilledExportIsNoFolderAndTheNextOneClearsIt) {
  const FolderContent all = content(false, 500);
  const pid_t child = ::fork();
  if (child == 0) {
    write_folder(target_, all, [&](int64_t p, const Sink& sink) {
      if (p == std::ssize(all.tensors) - 1) ::raise(SIGKILL);
      produce(all, p, sink);
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(fs::exists(target_));
  EXPECT_EQ(names_in(target_.parent_path()), std::set<std::string>{"model.saving"});
  EXPECT_FALSE(fs::is_empty(target_.parent_path() / "model.saving"));
  EXPECT_THAT(write(all).warnings, ElementsAre(HasSubstr("model.saving")));
  EXPECT_EQ(names_in(target_.parent_path()), std::set<std::string>{"model"});
  expect_complete(false);
}

TEST_F(FolderWriterTest, AFolderWithSomethingInItIsRefusedAndLeftAlone) {
  fs::create_directories(target_);
  write(content(true, kMaxShardBytes));  // an empty one is taken
  for (const auto& [path, what] :
       {std::pair{target_, "is not empty"}, std::pair{target_ / "config.json", "is no folder"}}) {
    try {
      write_folder(path, content(false, kMaxShardBytes), nullptr);
      ADD_FAILURE() << "it was written into";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(what));
    }
  }
  expect_complete(true);
}

TEST_F(FolderWriterTest, TwoExportsDoNotMix) {
  const FolderContent all = content(false, kMaxShardBytes);
  write_folder(target_, all, [&](int64_t p, const Sink& sink) {
    if (p == 0) {
      EXPECT_THROW(write(all), UsageError);
    }
    produce(all, p, sink);
  });
  expect_complete(false);
}

TEST_F(FolderWriterTest, TheConfigNamesTheDtypeOfTheMatrices) {
  FolderContent all = content(false, kMaxShardBytes);
  EXPECT_EQ(nlohmann::json::parse(all.config_json)["torch_dtype"], "bfloat16");
  for (auto& tensor : all.tensors) {
    if (tensor.shape.size() == 1) tensor.dtype = SafetensorsDtype::kF32;
  }
  const auto text = config_text(small_config(false), all.tensors, {{"eos_token_id", {1, 2}}});
  EXPECT_EQ(nlohmann::json::parse(text)["torch_dtype"], "bfloat16");
  EXPECT_EQ(nlohmann::json::parse(text)["eos_token_id"], nlohmann::json({1, 2}));
  for (auto& tensor : all.tensors) tensor.dtype = SafetensorsDtype::kF32;
  EXPECT_EQ(nlohmann::json::parse(config_text(small_config(false), all.tensors, {}))["torch_dtype"],
            "float32");
}

TEST_F(FolderWriterTest, TokenizerFilesAreFoundAndCopied) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                           "generation_config.json", "merges.txt"}) {
    folder_.write(std::string("tokenizer/") + name, name);
  }
  folder_.write("tokenizer/model.safetensors", "no part of it");
  folder_.write("tokenizer/config.json", R"({"eos_token_id": 7, "bos_token_id": null})");
  FolderContent all = content(false, kMaxShardBytes);
  all.files = tokenizer_files(folder_ / "tokenizer");
  EXPECT_EQ(all.files.size(), 5u);
  write(all);
  EXPECT_EQ(folder_.read("out/model/chat_template.jinja"), "chat_template.jinja");
  expect_complete(false);
  EXPECT_EQ(token_ids(folder_ / "tokenizer"), nlohmann::json({{"eos_token_id", 7}}));
  EXPECT_TRUE(tokenizer_files(folder_ / "nowhere").empty());
  EXPECT_TRUE(token_ids(folder_ / "nowhere").empty());
}

}  // namespace
}  // namespace halfstep::hf
