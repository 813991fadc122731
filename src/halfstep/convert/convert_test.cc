#include "halfstep/convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>

#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/test_checkpoint.h"
#include "halfstep/core/bf16.h"
#include "halfstep/core/error.h"
#include "halfstep/core/test_folder.h"
#include "halfstep/core/thread_pool.h"
#include "halfstep/core/ue6m10.h"
#include "halfstep/hf/folder_reader.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::convert {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointReader;
using checkpoint::MutableSlice;
using checkpoint::TensorKind;
using checkpoint::TestTensors;
using checkpoint::whole_slice;
using ::testing::HasSubstr;

arch::ModelConfig small_config(int64_t vocab_size = 33, bool tied = false) {
  return {.family = arch::Family::kQwen3,
          .num_layers = 1,
          .hidden_size = 8,
          .ffn_hidden_size = 12,
          .num_attention_heads = 2,
          .num_query_groups = 1,
          .head_dim = 4,
          .vocab_size = vocab_size,
          .max_position_embeddings = 64,
          .qk_norm = true,
          .tie_embeddings = tied};
}

// The FP32 value of a weight, and the states that go with it. Some are chosen: a tie that a split
// master cannot keep, a zero, and an exp_avg_sq beyond either end of ue6m10.
constexpr float kTie = std::bit_cast<float>(0x3F808000u);
float value_of(const std::string& name, int64_t i) {
  return i == 2 ? kTie : checkpoint::test_value(1, name, i);
}
float exp_avg(const std::string& name, int64_t i) {
  return i == 3 ? 0.f : checkpoint::test_value(2, name, i) * 1e-3f;
}
float exp_avg_sq(const std::string& name, int64_t i) {
  if (i == 0) return 5000.f;
  if (i == 1) return 1e-25f;
  const float root = checkpoint::test_value(3, name, i);
  return root * root * 1e-4f;
}

class ConvertTest : public ::testing::Test {
 protected:
  // A checkpoint of the model in a storage, cut into two slices per tensor.
  static void save(const layout::StorageFormat& storage, const fs::path& dir) {
    TestTensors out;
    const auto add = [&](TensorKind kind, const arch::Parameter& p, Dtype dtype,
                         const std::function<void(void*, int64_t, int64_t)>& fill) {
      const int64_t cut = p.numel() / 3;
      for (const auto& [first, count] : {std::pair{int64_t{0}, cut}, {cut, p.numel() - cut}}) {
        auto slice = whole_slice(kind, p.name, p.shape, dtype);
        slice.start = first;
        slice.numel = count;
        out.add(slice);
        fill(out.at<std::byte>(out.slices().size() - 1), first, count);
      }
    };
    const auto values = [](Dtype dtype, float (*value)(const std::string&, int64_t),
                           const std::string& name) {
      return [=](void* to, int64_t first, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          const float v = value(name, first + i);
          if (dtype == Dtype::kF32) static_cast<float*>(to)[i] = v;
          if (dtype == Dtype::kBF16) static_cast<uint16_t*>(to)[i] = bf16_nearest(v);
          if (dtype == Dtype::kUE6M10) static_cast<uint16_t*>(to)[i] = ue6m10_nearest(v);
          if (dtype == Dtype::kI16) static_cast<int16_t*>(to)[i] = split_f32(v).remainder;
        }
      };
    };
    for (const arch::Parameter& p : arch::parameter_list(small_config())) {
      add(TensorKind::kWeight, p, storage.weight, values(storage.weight, value_of, p.name));
      if (storage.master == MasterMode::kFp32) {
        add(TensorKind::kMaster, p, Dtype::kF32, values(Dtype::kF32, value_of, p.name));
      }
      if (storage.master == MasterMode::kSplit) {
        add(TensorKind::kRemainder, p, Dtype::kI16, values(Dtype::kI16, value_of, p.name));
      }
      add(TensorKind::kExpAvg, p, storage.exp_avg, values(storage.exp_avg, exp_avg, p.name));
      add(TensorKind::kExpAvgSq, p, storage.exp_avg_sq,
          values(storage.exp_avg_sq, exp_avg_sq, p.name));
    }
    auto state = checkpoint::test_state(100);
    state.storage = storage;
    state.fp32_params = {};
    state.model_config = nlohmann::json::parse(arch::to_hf_config(small_config()));
    state.hyperparameters = {{"lr", 1e-3},
                             {"bf16", storage.weight == Dtype::kBF16},
                             {"o2-optimizer", true},
                             {"state-rounding", "nearest"},
                             {"reuse-fp32-param", true}};
    checkpoint::save_alone(dir, state, out.tensors());
  }

  // A whole tensor of a checkpoint, which must have this dtype.
  template <typename T>
  static std::vector<T> tensor(const fs::path& dir, TensorKind kind, const arch::Parameter& p,
                               Dtype dtype) {
    std::vector<T> out(static_cast<size_t>(p.numel()));
    MutableSlice slice;
    static_cast<checkpoint::Slice&>(slice) = whole_slice(kind, p.name, p.shape, dtype);
    slice.data = out.data();
    CheckpointReader(dir).load({&slice, 1}, {.allow_unrequested = true});
    return out;
  }
  static const ClassReport& row(const Report& report, const std::string& name) {
    for (const ClassReport& c : report.classes) {
      if (c.name == name) return c;
    }
    throw InternalError("no such class in the report");
  }
  static std::string message_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return std::string(error.what()) + "\n" + error.hint();
    }
    return "no error";
  }

  static constexpr layout::StorageFormat kFp32{.weight = Dtype::kF32,
                                               .gradient = Dtype::kF32,
                                               .master = MasterMode::kNone,
                                               .exp_avg = Dtype::kF32,
                                               .exp_avg_sq = Dtype::kF32};
  static constexpr layout::StorageFormat kO2{.weight = Dtype::kBF16,
                                             .gradient = Dtype::kBF16,
                                             .master = MasterMode::kSplit,
                                             .exp_avg = Dtype::kBF16,
                                             .exp_avg_sq = Dtype::kUE6M10};

  TestFolder folder_;
  const fs::path a_ = folder_.path() / "a", b_ = folder_.path() / "b", c_ = folder_.path() / "c";
  const std::vector<arch::Parameter> parameters_ = arch::parameter_list(small_config());
};

TEST_F(ConvertTest, Fp32StateToO2AndBackIsWithinHalfAnUlpOfEachFormat) {
  save(kFp32, a_);
  const Report to = convert_checkpoint(a_, b_,
                                       {.weight = Dtype::kBF16,
                                        .exp_avg = Dtype::kBF16,
                                        .exp_avg_sq = Dtype::kUE6M10,
                                        .master = MasterMode::kSplit},
                                       false);
  const auto num_parameters = std::ssize(parameters_);
  EXPECT_EQ(row(to, "weight").to, "bf16");
  EXPECT_EQ(row(to, "weight").max_relative_error, 0);  // the remainder has the rest
  EXPECT_EQ(row(to, "master").from, "none");
  EXPECT_EQ(row(to, "master").to, "split");
  int64_t ties = 0;
  for (const arch::Parameter& p : parameters_) {
    for (int64_t i = 0; i < p.numel(); ++i) ties += split_f32(value_of(p.name, i)).lost_ulp;
  }
  EXPECT_GE(ties, num_parameters);  // element 2 of each
  EXPECT_EQ(row(to, "master").lost_ulp, ties);
  EXPECT_LE(row(to, "master").max_relative_error, std::ldexp(1., -23));
  EXPECT_GE(row(to, "master").max_relative_error, std::ldexp(1., -23) / kTie);
  // Half a unit in the last place of 1.0: 7 and 10 bits behind the point.
  EXPECT_LE(row(to, "exp_avg").max_relative_error, std::ldexp(1., -8));
  EXPECT_GT(row(to, "exp_avg").max_relative_error, std::ldexp(1., -10));
  EXPECT_EQ(row(to, "exp_avg").bytes_before, 2 * row(to, "exp_avg").bytes_after);
  EXPECT_LE(row(to, "exp_avg_sq").max_relative_error, std::ldexp(1., -11));
  EXPECT_EQ(row(to, "exp_avg_sq").saturated, num_parameters);
  EXPECT_EQ(row(to, "exp_avg_sq").became_zero, num_parameters);

  const Report back = convert_checkpoint(
      b_, c_, {.weight = Dtype::kF32, .exp_avg = Dtype::kF32, .exp_avg_sq = Dtype::kF32}, false);
  for (const ClassReport& c : back.classes) EXPECT_EQ(c.max_relative_error, 0) << c.name;
  for (const arch::Parameter& p : parameters_) {
    const auto w = tensor<float>(c_, TensorKind::kWeight, p, Dtype::kF32);
    const auto m = tensor<float>(c_, TensorKind::kExpAvg, p, Dtype::kF32);
    const auto v = tensor<float>(c_, TensorKind::kExpAvgSq, p, Dtype::kF32);
    for (int64_t i = 0; i < p.numel(); ++i) {
      const SplitWeight split = split_f32(value_of(p.name, i));
      ASSERT_EQ(w[i], join_f32(split.weight, split.remainder)) << p.name << i;
      ASSERT_EQ(m[i], bf16_decode(bf16_nearest(exp_avg(p.name, i))));
      ASSERT_EQ(v[i], ue6m10_decode(ue6m10_nearest(exp_avg_sq(p.name, i))));
    }
  }
  CheckpointReader(c_).verify();
}

TEST_F(ConvertTest, EachMasterComesFromTheFp32Value) {
  for (const MasterMode from : {MasterMode::kFp32, MasterMode::kSplit}) {
    for (const MasterMode to : {MasterMode::kFp32, MasterMode::kSplit, MasterMode::kNone}) {
      layout::StorageFormat storage = kO2;
      storage.master = from;
      save(storage, a_);
      const Report report = convert_checkpoint(a_, b_, {.master = to}, false);
      for (const arch::Parameter& p : parameters_) {
        const auto w = tensor<uint16_t>(b_, TensorKind::kWeight, p, Dtype::kBF16);
        std::vector<float> master;
        std::vector<int16_t> remainder;
        if (to == MasterMode::kFp32) {
          master = tensor<float>(b_, TensorKind::kMaster, p, Dtype::kF32);
        }
        if (to == MasterMode::kSplit) {
          remainder = tensor<int16_t>(b_, TensorKind::kRemainder, p, Dtype::kI16);
        }
        for (int64_t i = 0; i < p.numel(); ++i) {
          const SplitWeight split = split_f32(value_of(p.name, i));
          const float joined = join_f32(split.weight, split.remainder);
          ASSERT_EQ(w[i], split.weight);
          if (to == MasterMode::kFp32) {
            ASSERT_EQ(master[i], from == MasterMode::kFp32 ? value_of(p.name, i) : joined);
          }
          if (to == MasterMode::kSplit) {
            ASSERT_EQ(remainder[i], split.remainder);
          }
        }
      }
      EXPECT_EQ(row(report, "master").to, to == MasterMode::kNone ? "none" : master_name(to));
      // Dropped bits are a loss of the weight; kept ones are none.
      EXPECT_EQ(row(report, "weight").max_relative_error > 0, to == MasterMode::kNone);
      EXPECT_EQ(CheckpointReader(b_).state().hyperparameters["master"], master_name(to));
      fs::remove_all(a_);
      fs::remove_all(b_);
    }
  }
}

// A master of .1 must never come back as BF16(.1) without being told to.
TEST_F(ConvertTest, AMasterIsMadeFromBf16WeightsOnlyOnRequest) {
  layout::StorageFormat storage = kO2;
  storage.master = MasterMode::kNone;
  save(storage, a_);
  for (const Formats& formats :
       {Formats{.weight = Dtype::kF32}, Formats{.master = MasterMode::kFp32}}) {
    EXPECT_THAT(message_of([&] { convert_checkpoint(a_, b_, formats, false); }),
                HasSubstr("--allow-lossy-master"));
    EXPECT_FALSE(fs::exists(b_));
  }
  const Report report = convert_checkpoint(a_, b_, {.master = MasterMode::kFp32}, true);
  EXPECT_THAT(report.notes, ::testing::ElementsAre(HasSubstr("only their BF16 weights")));
  const arch::Parameter& p = parameters_.front();
  EXPECT_EQ(tensor<float>(b_, TensorKind::kMaster, p, Dtype::kF32)[7],
            bf16_decode(bf16_nearest(value_of(p.name, 7))));
}

TEST_F(ConvertTest, WhatIsNotAskedForStaysBitForBitAndTheSettingsFollow) {
  save(kO2, a_);
  convert_checkpoint(a_, b_, {.exp_avg = Dtype::kF32}, false);
  for (const arch::Parameter& p : parameters_) {
    EXPECT_EQ(tensor<uint16_t>(a_, TensorKind::kExpAvgSq, p, Dtype::kUE6M10),
              tensor<uint16_t>(b_, TensorKind::kExpAvgSq, p, Dtype::kUE6M10));
    EXPECT_EQ(tensor<int16_t>(a_, TensorKind::kRemainder, p, Dtype::kI16),
              tensor<int16_t>(b_, TensorKind::kRemainder, p, Dtype::kI16));
  }
  const CheckpointReader reader(b_);
  EXPECT_EQ(reader.state().iteration, 100);
  EXPECT_EQ(reader.state().seed, checkpoint::test_state(100).seed);
  EXPECT_EQ(reader.state().storage.exp_avg, Dtype::kF32);
  const nlohmann::json expected{{"lr", 1e-3},
                                {"bf16", true},
                                {"exp-avg-dtype", "fp32"},
                                {"exp-avg-sq-dtype", "ue6m10"},
                                {"master", "split"}};
  EXPECT_EQ(reader.state().hyperparameters, expected);
}

TEST_F(ConvertTest, FormatsThatContradictEachOtherAreRefused) {
  EXPECT_THROW(target_storage(kFp32, {.master = MasterMode::kFp32}), UsageError);
  EXPECT_THROW(target_storage(kO2, {.weight = Dtype::kF32, .master = MasterMode::kSplit}),
               UsageError);
  EXPECT_THROW(target_storage(kO2, {.exp_avg = Dtype::kUE6M10}), UsageError);
  EXPECT_EQ(target_storage(kFp32, {.weight = Dtype::kBF16}).master, MasterMode::kFp32);
  EXPECT_EQ(target_storage(kO2, {.weight = Dtype::kF32}).gradient, Dtype::kF32);
}

TEST_F(ConvertTest, TheSourceIsNeverTheTarget) {
  save(kO2, a_);
  for (const fs::path& save :
       {a_, a_ / "step_00000100", a_ / "step_00000100" / "x", a_ / ".." / "a"}) {
    for (const fs::path& load : {a_, a_ / "step_00000100"}) {
      EXPECT_THAT(message_of([&] { convert_checkpoint(load, save, {}, false); }),
                  HasSubstr("the source is never changed"))
          << save;
    }
  }
  save(kO2, b_);
  EXPECT_THAT(message_of([&] { convert_checkpoint(a_, b_, {}, false); }),
              HasSubstr("already holds checkpoints"));
  CheckpointReader(a_).verify();
  CheckpointReader(b_).verify();
}

TEST_F(ConvertTest, ADamagedSourceIsNamedAndLeavesNoTarget) {
  save(kO2, a_);
  const fs::path shard = a_ / "step_00000100" / "shard_00001_of_00001.safetensors";
  {
    std::fstream file(shard, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }
  const std::string last = CheckpointReader(a_).manifest().slices.back().name;
  for (const auto& convert : std::vector<std::function<void()>>{
           [&] { convert_checkpoint(a_, b_, {.exp_avg = Dtype::kF32}, false); }}) {
    const std::string message = message_of(convert);
    EXPECT_THAT(message, HasSubstr(shard.string()));
    EXPECT_THAT(message, HasSubstr(last));
    EXPECT_THAT(message, HasSubstr("do not match their checksum"));
  }
  EXPECT_FALSE(fs::exists(b_));
  fs::resize_file(shard, fs::file_size(shard) - 1);
  EXPECT_THAT(message_of([&] { convert_checkpoint(a_, b_, {}, false); }), HasSubstr("damaged"));
  EXPECT_THAT(message_of([&] { export_to_hf(a_, b_, {}); }), HasSubstr("damaged"));
  EXPECT_FALSE(fs::exists(b_));
}

TEST_F(ConvertTest, AnExportHasTheStoredWeightsOrTheirFp32Values) {
  for (const MasterMode master : {MasterMode::kFp32, MasterMode::kSplit, MasterMode::kNone}) {
    layout::StorageFormat storage = kO2;
    storage.master = master;
    save(storage, a_);
    EXPECT_EQ(export_to_hf(a_, b_, {}).classes[0].to, "bf16");
    const Report report = export_to_hf(a_, c_, {.dtype = Dtype::kF32, .max_shard_bytes = 300});
    EXPECT_EQ(report.classes[0].max_relative_error, 0);
    EXPECT_EQ(arch::load_hf_config(c_ / "config.json"), small_config());
    const hf::FolderReader bf16(b_, small_config()), fp32(c_, small_config());
    for (int64_t p = 0; p < std::ssize(parameters_); ++p) {
      EXPECT_EQ(bf16.dtype(p), io::SafetensorsDtype::kBF16);
      EXPECT_EQ(fp32.dtype(p), io::SafetensorsDtype::kF32);
      std::vector<uint16_t> w(static_cast<size_t>(parameters_[p].numel()));
      std::vector<float> x(w.size());
      bf16.load(p, {w.data(), Dtype::kBF16});
      fp32.load(p, {x.data(), Dtype::kF32});
      for (size_t i = 0; i < w.size(); ++i) {
        const float value = value_of(parameters_[p].name, static_cast<int64_t>(i));
        const SplitWeight split = split_f32(value);
        ASSERT_EQ(w[i], split.weight);
        ASSERT_EQ(x[i], master == MasterMode::kFp32    ? value
                        : master == MasterMode::kSplit ? join_f32(split.weight, split.remainder)
                                                       : bf16_decode(split.weight));
      }
    }
    for (const fs::path& dir : {a_, b_, c_}) fs::remove_all(dir);
  }
}

TEST_F(ConvertTest, AnImportLosesNothingOfF32F16AndBf16) {
  using io::SafetensorsDtype;
  for (const SafetensorsDtype dtype :
       {SafetensorsDtype::kF32, SafetensorsDtype::kF16, SafetensorsDtype::kBF16}) {
    folder_.write("a/config.json", arch::to_hf_config(small_config()));
    std::vector<io::SafetensorsSpec> specs;
    for (const auto& p : parameters_) specs.push_back({p.name, dtype, p.shape});
    io::SafetensorsWriter writer(a_ / "model.safetensors", specs);
    // 1 + i/1024, which has ten bits behind the point: F32 and F16 hold it.
    const auto value = [&](int64_t i) {
      const float v = 1 + static_cast<float>(i % 1024) / 1024;
      return dtype == SafetensorsDtype::kBF16 ? bf16_decode(bf16_nearest(v)) : v;
    };
    for (const auto& p : parameters_) {
      for (int64_t i = 0; i < p.numel(); ++i) {
        const float v = value(i);
        uint32_t bits = std::bit_cast<uint32_t>(v);
        if (dtype == SafetensorsDtype::kBF16) bits >>= 16;
        if (dtype == SafetensorsDtype::kF16) bits = 15 << 10 | (bits >> 13 & 0x3FF);
        if (v == 2) bits = 0;  // BF16 rounds up to it; not used
        writer.write(std::as_bytes(std::span(&bits, 1))
                         .first(static_cast<size_t>(io::safetensors_dtype_bytes(dtype))));
      }
    }
    writer.finish();
    const Report report = import_from_hf(
        a_, b_,
        {.weight = Dtype::kBF16, .exp_avg_sq = Dtype::kUE6M10, .master = MasterMode::kFp32});
    EXPECT_EQ(row(report, "weight").from, dtype == SafetensorsDtype::kF32   ? "fp32"
                                          : dtype == SafetensorsDtype::kF16 ? "fp16"
                                                                            : "bf16");
    const CheckpointReader reader(b_);
    EXPECT_TRUE(reader.state().is_fresh());
    EXPECT_EQ(reader.state().iteration, 0);
    EXPECT_EQ(reader.state().t, 0);
    EXPECT_EQ(arch::parse_hf_config(reader.state().model_config.dump(), ""), small_config());
    for (const auto& p : parameters_) {
      const auto master = tensor<float>(b_, TensorKind::kMaster, p, Dtype::kF32);
      const auto w = tensor<uint16_t>(b_, TensorKind::kWeight, p, Dtype::kBF16);
      for (int64_t i = 0; i < p.numel(); ++i) {
        ASSERT_EQ(master[i], value(i));
        ASSERT_EQ(w[i], bf16_nearest(value(i)));
      }
      const auto v = tensor<uint16_t>(b_, TensorKind::kExpAvgSq, p, Dtype::kUE6M10);
      EXPECT_EQ(std::count(v.begin(), v.end(), 0), p.numel());
    }
    fs::remove_all(a_);
    fs::remove_all(b_);
  }
}

// Runs `body` in a process that may not have more than 32 MiB of memory of its own beyond what it
// has now (mapped files do not count): the buffers of a conversion, but not one of its 64 MiB
// tensors.
void expect_little_memory(const std::function<void()>& body) {
  ThreadPool::set_global_threads(1);  // a fork has no other threads
  const pid_t child = ::fork();
  if (child == 0) {
    int64_t pages = 0, data_pages = 0, skipped = 0;
    std::ifstream("/proc/self/statm") >> pages >> skipped >> skipped >> skipped >> skipped >>
        data_pages;
    const auto limit = static_cast<rlim_t>(data_pages * ::sysconf(_SC_PAGESIZE) + (32 << 20));
    const rlimit bound{limit, limit};
    if (::setrlimit(RLIMIT_DATA, &bound) != 0) ::_exit(2);
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// A checkpoint in kO2 whose embedding has 16 Mi elements, without holding one: all bytes are 0x3C.
void save_large(const arch::ModelConfig& config, const layout::StorageFormat& storage,
                const fs::path& dir) {
  std::vector<checkpoint::TensorSlice> slices;
  for (const arch::Parameter& p : arch::parameter_list(config)) {
    for (const auto& [kind, dtype] : {std::pair{TensorKind::kWeight, storage.weight},
                                      {TensorKind::kRemainder, Dtype::kI16},
                                      {TensorKind::kExpAvg, storage.exp_avg},
                                      {TensorKind::kExpAvgSq, storage.exp_avg_sq}}) {
      auto& slice = slices.emplace_back();
      static_cast<checkpoint::Slice&>(slice) = whole_slice(kind, p.name, p.shape, dtype);
      slice.produce = [](int64_t, std::span<std::byte> out) {
        std::fill(out.begin(), out.end(), std::byte{0x3C});
      };
    }
  }
  auto state = checkpoint::test_state(100);
  state.storage = storage;
  state.fp32_params = {};
  state.model_config = nlohmann::json::parse(arch::to_hf_config(config));
  checkpoint::save_alone(dir, state, slices);
}

TEST_F(ConvertTest, MemoryIsThatOfPiecesNotOfTensors) {
  save_large(small_config(2 << 20, true), kO2, a_);
  expect_little_memory([&] { export_to_hf(a_, b_, {.dtype = Dtype::kF32}); });
  expect_little_memory([&] {
    convert_checkpoint(a_, c_, {.exp_avg = Dtype::kF32, .master = MasterMode::kFp32}, false);
  });
  fs::remove_all(a_);
  fs::remove_all(c_);
  expect_little_memory(
      [&] { import_from_hf(b_, a_, {.weight = Dtype::kBF16, .master = MasterMode::kSplit}); });
}

}  // namespace
}  // namespace halfstep::convert
