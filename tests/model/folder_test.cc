// Hugging Face folders that are damaged, contradictory or unusual, and what we save ourselves.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "halfstep/core/error.h"
#include "halfstep/hf/folder_writer.h"
#include "halfstep/io/file.h"
#include "halfstep/io/json.h"
#include "halfstep/io/safetensors.h"
#include "reference_case.h"

namespace halfstep::model::testing {
namespace {

namespace fs = std::filesystem;
using io::SafetensorsFile;
using io::SafetensorsSpec;
using ::testing::HasSubstr;

// A copy of a reference folder that a test may damage.
class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("halfstep_folder_test_" + std::to_string(::getpid()) + "_" + info->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  ReferenceCase copy(const std::string& name) {
    ReferenceCase c(name);
    fs::create_directories(folder_);
    for (const auto& entry : fs::directory_iterator(c.folder)) {
      if (entry.path().filename() != "reference.safetensors") {
        fs::copy_file(entry.path(), folder_ / entry.path().filename());
      }
    }
    c.folder = folder_;
    return c;
  }

  // Writes model.safetensors anew without `dropped` and with `added`, a copy of `like` whose first
  // element is raised by `change`.
  void rewrite(const std::string& dropped, const std::string& added = {},
               const std::string& like = {}, float change = 0) {
    const fs::path path = folder_ / "model.safetensors";
    const SafetensorsFile file(path);
    std::vector<SafetensorsSpec> specs;
    std::vector<std::string> data;
    const auto add = [&](const std::string& name, const std::string& source, float raise) {
      const auto& tensor = file.at(source);
      specs.push_back({name, tensor.dtype, tensor.shape});
      const auto bytes = file.data(tensor);
      std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      float first;
      std::memcpy(&first, text.data(), sizeof first);
      first += raise;
      std::memcpy(text.data(), &first, sizeof first);
      data.push_back(std::move(text));
    };
    for (const auto& tensor : file.tensors()) {
      if (tensor.name != dropped) add(tensor.name, tensor.name, 0);
    }
    if (!added.empty()) add(added, like, change);
    io::SafetensorsWriter writer(path, specs);
    for (const std::string& text : data) writer.write(std::as_bytes(std::span(text)));
    writer.finish();
  }

  void set_tied(bool tied) {
    nlohmann::json config = io::read_json_file(folder_ / "config.json");
    config["tie_word_embeddings"] = tied;
    std::ofstream(folder_ / "config.json") << config;
  }

  // The message of the InputError that loading the folder must end with.
  std::string load_error() {
    try {
      const arch::ModelConfig config = arch::load_hf_config(folder_ / "config.json");
      const hf::FolderReader weights(folder_, config);
      weights.load(slots_of(make_leaves(arch::parameter_list(config), at::kFloat, 1)));
    } catch (const InputError& error) {
      EXPECT_FALSE(error.hint().empty());
      return error.what();
    }
    ADD_FAILURE() << "the folder was accepted";
    return {};
  }

  fs::path folder_;
};

TEST_F(FolderTest, MissingNormIsNamed) {
  copy("qwen3");
  rewrite("model.layers.0.self_attn.q_norm.weight");
  EXPECT_THAT(load_error(), HasSubstr("model.layers.0.self_attn.q_norm.weight"));
}

TEST_F(FolderTest, UnexpectedTensorIsNamed) {
  copy("qwen3");
  rewrite("", "model.layers.0.self_attn.q_proj.bias", "model.norm.weight");
  EXPECT_THAT(load_error(), HasSubstr("model.layers.0.self_attn.q_proj.bias"));
}

TEST_F(FolderTest, WrongShapeIsNamed) {
  copy("qwen3");
  rewrite("model.norm.weight", "model.norm.weight", "model.layers.0.self_attn.q_norm.weight");
  EXPECT_THAT(load_error(), HasSubstr("'model.norm.weight' has shape [24], expected [64]"));
}

TEST_F(FolderTest, OldRotaryTablesAreListedAsIgnored) {
  const ReferenceCase c = copy("llama_tied");
  const std::string name = "model.layers.0.self_attn.rotary_emb.inv_freq";
  rewrite("", name, "model.norm.weight");
  EXPECT_EQ(hf::FolderReader(folder_, c.config).ignored(), std::vector<std::string>{name});
}

TEST_F(FolderTest, TruncatedFileIsAnError) {
  copy("qwen3");
  const fs::path path = folder_ / "model.safetensors";
  const auto size = fs::file_size(path);
  for (const auto kept : {size - 1, size / 2, uintmax_t{100}, uintmax_t{4}, uintmax_t{0}}) {
    fs::resize_file(path, kept);
    EXPECT_THAT(load_error(), HasSubstr("model.safetensors")) << kept;
  }
  fs::remove(path);
  EXPECT_THAT(load_error(), HasSubstr("model.safetensors"));
}

TEST_F(FolderTest, IndexThatNamesAnAbsentShard) {
  copy("llama_untied");
  fs::remove(folder_ / "model-00002-of-00006.safetensors");
  const std::string error = load_error();
  EXPECT_THAT(error, HasSubstr("model-00002-of-00006.safetensors"));
  EXPECT_THAT(error, HasSubstr("tensor '"));
}

TEST_F(FolderTest, IndexAndShardsThatDisagree) {
  copy("llama_untied");
  const fs::path path = folder_ / "model.safetensors.index.json";
  const nlohmann::json good = io::read_json_file(path);
  nlohmann::json bad = good;
  bad["weight_map"].erase("model.norm.weight");
  std::ofstream(path) << bad;
  EXPECT_THAT(load_error(), HasSubstr("model.norm.weight"));
  bad = good;
  bad["weight_map"]["model.norm.weight"] = "../model-00001-of-00006.safetensors";
  std::ofstream(path) << bad;
  EXPECT_THAT(load_error(), HasSubstr("model.norm.weight"));
  bad = good;
  bad["weight_map"]["model.nose.weight"] = "model-00001-of-00006.safetensors";
  std::ofstream(path) << bad;
  EXPECT_THAT(load_error(), HasSubstr("model.nose.weight"));
}

// The four cases of tying: {config tied, not} × {lm_head present, absent}.
TEST_F(FolderTest, TiedConfigWithoutHeadLoads) {
  const ReferenceCase c = copy("llama_tied");
  EXPECT_TRUE(c.config.tie_embeddings);
  EXPECT_NO_THROW(load_leaves(c));
}
TEST_F(FolderTest, TiedConfigWithAnEqualHeadLoads) {
  const ReferenceCase c = copy("llama_tied");
  rewrite("", "lm_head.weight", "model.embed_tokens.weight");
  EXPECT_NO_THROW(load_leaves(c));
}
TEST_F(FolderTest, TiedConfigWithAnotherHeadIsAnErrorWithTheDifference) {
  copy("llama_tied");
  rewrite("", "lm_head.weight", "model.embed_tokens.weight", 2.0f);
  const std::string error = load_error();
  EXPECT_THAT(error, HasSubstr("lm_head.weight"));
  EXPECT_THAT(error, HasSubstr("by up to 2"));
}
TEST_F(FolderTest, UntiedConfigNeedsAHead) {
  copy("llama_tied");
  set_tied(false);
  EXPECT_THAT(load_error(), HasSubstr("missing tensor 'lm_head.weight'"));
}
TEST_F(FolderTest, UntiedConfigWithAHeadLoads) {
  copy("llama_tied");
  rewrite("", "lm_head.weight", "model.embed_tokens.weight");
  set_tied(false);
  const arch::ModelConfig config = arch::load_hf_config(folder_ / "config.json");
  const auto leaves = make_leaves(arch::parameter_list(config), at::kFloat, 1);
  hf::FolderReader(folder_, config).load(slots_of(leaves));
  EXPECT_TRUE(leaves.front().equal(leaves.back()));
}

// FP32 → BF16 is nearest; BF16 and F16 files give the values that torch reads from them.
TEST_F(FolderTest, SourceDtypes) {
  const ReferenceCase c = copy("qwen2");
  const std::vector<at::Tensor> fp32 = load_leaves(c), bf16 = load_leaves(c, at::kBFloat16);
  for (size_t i = 0; i < fp32.size(); ++i) {
    EXPECT_TRUE(fp32[i].detach().to(at::kBFloat16).equal(bf16[i])) << c.parameters[i].name;
  }
  for (const auto& [dtype, stored] : {std::pair{at::kBFloat16, io::SafetensorsDtype::kBF16},
                                      std::pair{at::kHalf, io::SafetensorsDtype::kF16}}) {
    std::vector<SafetensorsSpec> specs;
    for (const auto& p : c.parameters) specs.push_back({p.name, stored, p.shape});
    io::SafetensorsWriter writer(folder_ / "model.safetensors", specs);
    std::vector<at::Tensor> narrow;
    for (const at::Tensor& leaf : fp32) {
      at::Tensor t = leaf.detach().clone();
      // Subnormals, infinities and zeros of binary16 as well as ordinary values.
      const float special[] = {0.0f, -0.0f, 6e-8f, -3e-5f, 65504.0f, INFINITY, -INFINITY};
      for (int64_t j = 0; j < 7; ++j) t.view(-1)[j].fill_(special[j]);
      narrow.push_back(t.to(dtype));
      writer.write(
          {static_cast<const std::byte*>(narrow.back().const_data_ptr()), narrow.back().nbytes()});
    }
    writer.finish();
    const std::vector<at::Tensor> loaded = load_leaves(c);
    for (size_t i = 0; i < narrow.size(); ++i) {
      EXPECT_TRUE(narrow[i].to(at::kFloat).view(at::kInt).equal(loaded[i].detach().view(at::kInt)))
          << c.parameters[i].name;
    }
  }
}

class SavedFolder : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, SavedFolder, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param; });

// check_saved.py reads the same folders with `transformers` afterwards.
TEST_P(SavedFolder, LoadsBackBitForBit) {
  const char* root = std::getenv("HALFSTEP_MODEL_SAVED");
  ASSERT_NE(root, nullptr);
  const ReferenceCase c(GetParam());
  const fs::path folder = fs::path(root) / GetParam();
  const std::vector<at::Tensor> leaves = load_leaves(c);
  fs::remove_all(folder);  // of an earlier run
  hf::save_folder(folder, c.config, slots_of(leaves));
  EXPECT_EQ(arch::load_hf_config(folder / "config.json"), c.config);
  const std::vector<at::Tensor> again = make_leaves(c.parameters, at::kFloat, 1);
  hf::FolderReader(folder, c.config).load(slots_of(again));
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(leaves[i].equal(again[i])) << c.parameters[i].name;
  }
}

}  // namespace
}  // namespace halfstep::model::testing
