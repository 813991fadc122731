// Saves and loads through real files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/test_checkpoint.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/core/error.h"
#include "halfstep/core/test_folder.h"
#include "halfstep/core/ue6m10.h"
#include "halfstep/io/file.h"
#include "halfstep/io/safetensors.h"

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& error) {
    return std::string(error.what()) + "\n" + error.hint();
  }
  return "no InputError";
}

class CheckpointTest : public ::testing::Test {
 protected:
  SaveResult save(const TestTensors& tensors, int64_t iteration, RetentionPolicy policy = {}) {
    return save_alone(dir_, test_state(iteration), tensors.tensors(), policy);
  }

  TestFolder folder_;
  const fs::path dir_ = folder_.path() / "run";
};

TEST_F(CheckpointTest, EveryBitAndTheStateComeBack) {
  const TestTensors saved = test_model(1);
  const SaveResult result = save(saved, 100);
  EXPECT_EQ(result.directory, dir_ / "step_00000100");
  EXPECT_EQ(io::read_text_file(dir_ / "latest"), "step_00000100\n");
  EXPECT_THAT(result.warnings, IsEmpty());

  const CheckpointReader reader(dir_);
  TestTensors loaded = empty_like(saved);
  EXPECT_THAT(reader.load(loaded.mutable_slices()).conversions, IsEmpty());
  EXPECT_EQ(loaded.bytes(), saved.bytes());
  reader.verify();

  const TrainState expected = test_state(100), &state = reader.state();
  EXPECT_EQ(state.iteration, 100);
  EXPECT_EQ(state.t, 98);
  EXPECT_EQ(state.t_of("norm.weight"), 3);
  EXPECT_EQ(state.t_of("mlp.weight"), 98);
  EXPECT_EQ(state.consumed_samples, expected.consumed_samples);
  EXPECT_EQ(state.consumed_tokens, expected.consumed_tokens);
  EXPECT_EQ(state.skipped_steps, 2);
  EXPECT_EQ(state.consecutive_skipped_steps, 1);
  EXPECT_EQ(state.seed, expected.seed);
  EXPECT_EQ(state.data_fingerprint, expected.data_fingerprint);
  EXPECT_EQ(state.torch_threads, 2);
  EXPECT_EQ(state.storage, expected.storage);
  EXPECT_EQ(state.fp32_params, expected.fp32_params);
  EXPECT_EQ(state.hyperparameters, expected.hyperparameters);
  EXPECT_EQ(state.model_config, expected.model_config);
  EXPECT_EQ(state.data, expected.data);
  EXPECT_EQ(reader.parameters().at("mlp.weight"), (std::vector<int64_t>{12, 33}));
}

TEST_F(CheckpointTest, AShardIsAPlainSafetensorsFile) {
  const auto folder = save(test_model(1), 7).directory;
  const io::SafetensorsFile file(folder / "shard_00001_of_00001.safetensors");
  const auto& weight = file.at("weight/mlp.weight");
  EXPECT_EQ(weight.dtype, io::SafetensorsDtype::kBF16);
  EXPECT_EQ(weight.shape, (std::vector<int64_t>{12, 33}));
  EXPECT_EQ(file.at("remainder/mlp.weight").dtype, io::SafetensorsDtype::kI16);
  EXPECT_EQ(file.at("exp_avg_sq/mlp.weight").dtype, io::SafetensorsDtype::kU16);
  EXPECT_EQ(file.at("exp_avg/mlp.weight").dtype, io::SafetensorsDtype::kF32);
  for (const auto& tensor : file.tensors()) {
    EXPECT_EQ(tensor.offset % io::safetensors_dtype_bytes(tensor.dtype), 0) << tensor.name;
  }
}

// Writes a parameter cut one way and reads it cut another way. The cuts are not multiples of
// anything, one is by rows, one by columns, one by ranges within column boxes.
TEST_F(CheckpointTest, AnyCutReadsWhatAnyOtherWrote) {
  const int64_t rows = 37, cols = 29;
  std::vector<uint16_t> whole(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<uint16_t>(i * 40503);

  const auto slice = [&](Box box, int64_t start, int64_t numel) {
    return Slice{TensorKind::kExpAvg, "w", {rows, cols}, box, start, numel, Dtype::kBF16};
  };
  const auto element = [&](const Slice& s, int64_t i) {
    i += s.start;
    return whole[static_cast<size_t>((s.box.row0 + i / s.box.cols()) * cols + s.box.col0 +
                                     i % s.box.cols())];
  };
  std::vector<std::vector<Slice>> cuts;
  cuts.push_back({slice({0, rows, 0, cols}, 0, rows * cols)});
  cuts.push_back({slice({0, 13, 0, cols}, 0, 13 * cols), slice({13, 37, 0, cols}, 0, 24 * cols)});
  cuts.push_back({slice({0, rows, 0, 11}, 0, rows * 11), slice({0, rows, 11, cols}, 0, rows * 18)});
  cuts.push_back({slice({0, rows, 0, 11}, 0, 100), slice({0, rows, 0, 11}, 100, rows * 11 - 100),
                  slice({0, rows, 11, cols}, 0, 501),
                  slice({0, rows, 11, cols}, 501, rows * 18 - 501)});
  cuts.push_back({slice({0, rows, 0, cols}, 0, 5), slice({0, rows, 0, cols}, 5, 1),
                  slice({0, rows, 0, cols}, 6, rows * cols - 6)});
  for (const auto& from : cuts) {
    TestTensors saved;
    for (size_t i = 0; i < from.size(); ++i) {
      saved.add(from[i]);
      for (int64_t j = 0; j < from[i].numel; ++j) saved.at<uint16_t>(i)[j] = element(from[i], j);
    }
    save(saved, 1);
    const CheckpointReader reader(dir_);
    reader.verify();
    for (const auto& to : cuts) {
      TestTensors loaded;
      for (const Slice& s : to) loaded.add(s);
      reader.load(loaded.mutable_slices());
      for (size_t i = 0; i < to.size(); ++i) {
        for (int64_t j = 0; j < to[i].numel; ++j) {
          ASSERT_EQ(loaded.at<uint16_t>(i)[j], element(to[i], j))
              << format_slice_name(to[i]) << " element " << j;
        }
      }
    }
    // One piece alone, as one rank of many asks for it.
    TestTensors piece;
    piece.add(slice({20, 30, 5, 25}, 33, 77));
    reader.load(piece.mutable_slices());
    for (int64_t j = 0; j < 77; ++j) {
      ASSERT_EQ(piece.at<uint16_t>(0)[j], element(piece.slices()[0], j));
    }
  }
}

TEST_F(CheckpointTest, SizesThatDoNotDivideCutByAnyNumberOfRanks) {
  const auto cut = [](int64_t ranks) {  // flat ranges, in rank order, the last one short
    TestTensors out;
    for (const int64_t n : {5, 1, 7, 1'000'003}) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        Slice s = whole_slice(TensorKind::kMaster, "p" + std::to_string(n), {n}, Dtype::kF32);
        s.start = n * rank / ranks;
        s.numel = n * (rank + 1) / ranks - s.start;
        out.add(s);
        for (int64_t i = 0; i < s.numel; ++i) {
          out.at<float>(out.slices().size() - 1)[i] = static_cast<float>(s.start + i) + 0.5f;
        }
      }
    }
    return out;
  };
  for (const int64_t from : {4, 3, 1}) {
    save(cut(from), 1);
    for (const int64_t to : {1, 2, 3, 4, 6, 8}) {
      const TestTensors expected = cut(to);
      TestTensors loaded = empty_like(expected);
      CheckpointReader(dir_).load(loaded.mutable_slices());
      EXPECT_EQ(loaded.bytes(), expected.bytes()) << from << " -> " << to;
    }
  }
}

TEST_F(CheckpointTest, ReportsEveryTensorThatDoesNotFitAndWritesNothing) {
  save(test_model(1), 1);
  TestTensors wanted;
  wanted.add(whole_slice(TensorKind::kWeight, "embed.weight", {50, 12}, Dtype::kBF16));
  wanted.add(whole_slice(TensorKind::kExpAvg, "embed.weight", {50, 12}, Dtype::kBF16));
  wanted.add(whole_slice(TensorKind::kWeight, "norm.weight", {8}, Dtype::kBF16));
  wanted.add(whole_slice(TensorKind::kWeight, "lm_head.weight", {2}, Dtype::kBF16));
  const auto before = wanted.bytes();
  const std::string message =
      message_of([&] { CheckpointReader(dir_).load(wanted.mutable_slices()); });
  EXPECT_EQ(wanted.bytes(), before);
  EXPECT_THAT(message, HasSubstr("exp_avg of 'embed.weight': stored as fp32, asked for bf16"));
  EXPECT_THAT(message, HasSubstr("weight of 'norm.weight': stored with shape [7], asked for [8]"));
  EXPECT_THAT(message, HasSubstr("weight of 'lm_head.weight': missing"));
  EXPECT_THAT(message, HasSubstr("exp_avg_sq of 'mlp.weight': unexpected"));
  EXPECT_THAT(message, HasSubstr("remainder of 'embed.weight': unexpected"));
  EXPECT_THAT(message, HasSubstr("--convert-state"));
  // Tensors that fit are not named, and partial loads are a choice of the caller.
  EXPECT_THAT(message, Not(HasSubstr("weight of 'embed.weight': stored")));
  TestTensors weight;
  weight.add(wanted.slices()[0]);
  CheckpointReader(dir_).load(weight.mutable_slices(), {.allow_unrequested = true});
  EXPECT_EQ(weight.bytes()[0], test_model(1).bytes()[0]);
}

TEST_F(CheckpointTest, PartsThatAreNotStoredAreMissing) {
  TestTensors saved;
  Slice first = whole_slice(TensorKind::kMaster, "w", {10}, Dtype::kF32);
  first.numel = 6;
  saved.add(first);
  save(saved, 1);
  TestTensors wanted;
  wanted.add(whole_slice(TensorKind::kMaster, "w", {10}, Dtype::kF32));
  EXPECT_THAT(message_of([&] { CheckpointReader(dir_).load(wanted.mutable_slices()); }),
              HasSubstr("not all elements of master/w"));
}

// One parameter whose FP32 values are known, stored in each of the ways of docs/numerics.md §6.
class ConversionTest : public CheckpointTest {
 protected:
  static constexpr int64_t kN = (1 << 20) + 17;  // more than one piece of the conversion

  static float value(int64_t i) {
    return i == 5 ? 1.00390625f : i == 6 ? 0.1f : test_value(9, "w", i);  // 5: a tie to even
  }
  static Slice part(TensorKind kind, Dtype dtype) { return whole_slice(kind, "w", {kN}, dtype); }

  void save_as(MasterMode mode) {
    TestTensors out;
    const bool fp32_weight = mode == MasterMode::kNone;
    out.add(part(TensorKind::kWeight, fp32_weight ? Dtype::kF32 : Dtype::kBF16));
    if (mode == MasterMode::kSplit) out.add(part(TensorKind::kRemainder, Dtype::kI16));
    if (mode == MasterMode::kFp32) out.add(part(TensorKind::kMaster, Dtype::kF32));
    for (int64_t i = 0; i < kN; ++i) {
      const SplitWeight split = split_f32(value(i));
      if (fp32_weight) {
        out.at<float>(0)[i] = value(i);
      } else {
        out.at<uint16_t>(0)[i] = split.weight;
      }
      if (mode == MasterMode::kSplit) out.at<int16_t>(1)[i] = split.remainder;
      if (mode == MasterMode::kFp32) out.at<float>(1)[i] = value(i);
    }
    save(out, 1);
  }
};

TEST_F(ConversionTest, FullPrecisionValuesMoveBetweenKindsOfMaster) {
  for (const MasterMode from : {MasterMode::kFp32, MasterMode::kSplit, MasterMode::kNone}) {
    save_as(from);
    const CheckpointReader reader(dir_);
    const bool tie_lost = from == MasterMode::kSplit;
    const auto expected = [&](int64_t i) {
      const SplitWeight split = split_f32(value(i));
      return tie_lost ? join_f32(split.weight, split.remainder) : value(i);
    };

    TestTensors with_master;
    with_master.add(part(TensorKind::kWeight, Dtype::kBF16));
    with_master.add(part(TensorKind::kMaster, Dtype::kF32));
    reader.load(with_master.mutable_slices(), {.convert_state = true});
    TestTensors split;
    split.add(part(TensorKind::kWeight, Dtype::kBF16));
    split.add(part(TensorKind::kRemainder, Dtype::kI16));
    const LoadReport report = reader.load(split.mutable_slices(), {.convert_state = true});
    TestTensors fp32_weight;
    fp32_weight.add(part(TensorKind::kWeight, Dtype::kF32));
    reader.load(fp32_weight.mutable_slices(), {.convert_state = true});

    int64_t ties = 0;
    for (int64_t i = 0; i < kN; ++i) {
      const SplitWeight s = split_f32(value(i));
      ties += s.lost_ulp;
      ASSERT_EQ(with_master.at<uint16_t>(0)[i], s.weight) << i;
      ASSERT_EQ(with_master.at<float>(1)[i], expected(i)) << i;
      ASSERT_EQ(split.at<uint16_t>(0)[i], s.weight) << i;
      ASSERT_EQ(split.at<int16_t>(1)[i], s.remainder) << i;
      ASSERT_EQ(fp32_weight.at<float>(0)[i], expected(i)) << i;
    }
    EXPECT_GE(ties, 1);
    EXPECT_EQ(report.split_ties, tie_lost ? 0 : ties);
  }
}

TEST_F(ConversionTest, NothingIsConvertedUnasked) {
  save_as(MasterMode::kSplit);
  TestTensors wanted;
  wanted.add(part(TensorKind::kWeight, Dtype::kBF16));
  wanted.add(part(TensorKind::kMaster, Dtype::kF32));
  const std::string message =
      message_of([&] { CheckpointReader(dir_).load(wanted.mutable_slices()); });
  EXPECT_THAT(message, HasSubstr("master of 'w': missing"));
  EXPECT_THAT(message, HasSubstr("remainder of 'w': unexpected"));
  EXPECT_THAT(message, HasSubstr("--convert-state"));
}

// A master of .1 must never come back as BF16(.1) without being told to.
TEST_F(ConversionTest, AMasterIsMadeFromBf16WeightsOnlyOnRequest) {
  TestTensors saved;
  saved.add(part(TensorKind::kWeight, Dtype::kBF16));
  for (int64_t i = 0; i < kN; ++i) saved.at<uint16_t>(0)[i] = split_f32(value(i)).weight;
  save(saved, 1);
  const CheckpointReader reader(dir_);
  TestTensors wanted;
  wanted.add(part(TensorKind::kWeight, Dtype::kBF16));
  wanted.add(part(TensorKind::kMaster, Dtype::kF32));
  EXPECT_THAT(message_of([&] { reader.load(wanted.mutable_slices(), {.convert_state = true}); }),
              HasSubstr("--allow-lossy-master"));
  const LoadReport report =
      reader.load(wanted.mutable_slices(), {.convert_state = true, .allow_lossy_master = true});
  EXPECT_EQ(wanted.at<float>(1)[6], 0.100097656f);
  EXPECT_THAT(report.conversions,
              testing::ElementsAre(HasSubstr("master of 'w': from the BF16 weight")));
}

TEST_F(ConversionTest, StatesChangeDtypeWithOneLineEach) {
  TestTensors saved;
  saved.add(part(TensorKind::kExpAvg, Dtype::kF32));
  saved.add(part(TensorKind::kExpAvgSq, Dtype::kBF16));
  for (int64_t i = 0; i < kN; ++i) {
    saved.at<float>(0)[i] = value(i);
    saved.at<uint16_t>(1)[i] = bf16_nearest(value(i) * value(i));
  }
  save(saved, 1);
  const CheckpointReader reader(dir_);
  TestTensors wanted;
  wanted.add(part(TensorKind::kExpAvg, Dtype::kBF16));
  wanted.add(part(TensorKind::kExpAvgSq, Dtype::kUE6M10));
  const LoadReport report = reader.load(wanted.mutable_slices(), {.convert_state = true});
  EXPECT_THAT(report.conversions,
              testing::ElementsAre("exp_avg of 'w': fp32 -> bf16, nearest",
                                   "exp_avg_sq of 'w': bf16 -> ue6m10, nearest"));
  for (int64_t i = 0; i < kN; ++i) {
    ASSERT_EQ(wanted.at<uint16_t>(0)[i], bf16_nearest(value(i)));
    ASSERT_EQ(wanted.at<uint16_t>(1)[i],
              ue6m10_nearest(bf16_decode(bf16_nearest(value(i) * value(i)))));
  }
}

TEST_F(ConversionTest, ANegativeExpAvgSqIsNoUe6m10) {
  TestTensors saved;
  saved.add(part(TensorKind::kExpAvgSq, Dtype::kF32));
  std::fill_n(saved.at<float>(0), kN, 1.f);
  saved.at<float>(0)[kN - 2] = -1e-9f;
  save(saved, 1);
  TestTensors wanted;
  wanted.add(part(TensorKind::kExpAvgSq, Dtype::kUE6M10));
  EXPECT_THAT(message_of([&] {
                CheckpointReader(dir_).load(wanted.mutable_slices(), {.convert_state = true});
              }),
              HasSubstr("exp_avg_sq of 'w', element 1048591: -1e-09 has no ue6m10"));
}

TEST_F(ConversionTest, AZeroWeightWithANegativeRemainderIsRefused) {
  TestTensors saved;
  saved.add(part(TensorKind::kWeight, Dtype::kBF16));
  saved.add(part(TensorKind::kRemainder, Dtype::kI16));
  std::fill_n(saved.at<uint16_t>(0), kN, 0x3F80);
  std::fill_n(saved.at<int16_t>(1), kN, -1);
  saved.at<uint16_t>(0)[70] = 0x8000;
  save(saved, 1);
  TestTensors wanted = empty_like(saved), master;
  const CheckpointReader reader(dir_);
  EXPECT_THAT(message_of([&] { reader.load(wanted.mutable_slices()); }),
              HasSubstr("'w', element 70: a weight of 0 with the remainder -1"));
  master.add(part(TensorKind::kMaster, Dtype::kF32));
  EXPECT_THAT(message_of([&] { reader.load(master.mutable_slices(), {.convert_state = true}); }),
              HasSubstr("'w', element 70"));
}

TEST_F(CheckpointTest, FindsTheNewestCompleteOne) {
  for (const int64_t step : {100, 200, 300}) save(test_model(static_cast<uint64_t>(step)), step);
  EXPECT_EQ(CheckpointReader(dir_).state().iteration, 300);
  io::write_file_atomically(dir_ / "latest", "step_00000200\n");  // a person goes back
  EXPECT_EQ(CheckpointReader(dir_).state().iteration, 200);
  EXPECT_EQ(CheckpointReader(dir_ / "step_00000100").state().iteration, 100);

  fs::remove(dir_ / "step_00000200" / "manifest.json");  // without it the folder does not count
  EXPECT_EQ(CheckpointReader(dir_).state().iteration, 300);
  fs::remove(dir_ / "latest");
  fs::resize_file(dir_ / "step_00000300" / "shard_00001_of_00001.safetensors", 100);
  const CheckpointReader reader(dir_);
  EXPECT_EQ(reader.state().iteration, 100);
  EXPECT_THAT(reader.warnings(), testing::ElementsAre(HasSubstr("step_00000300")));
  EXPECT_THAT(message_of([&] { CheckpointReader(dir_ / "step_00000300"); }),
              HasSubstr("got 100 bytes, expected"));

  EXPECT_TRUE(is_checkpoint(dir_));
  EXPECT_TRUE(is_checkpoint(dir_ / "step_00000100"));
  EXPECT_FALSE(is_checkpoint(dir_ / "step_00000200"));
  EXPECT_THAT(folders_without_manifest(dir_), testing::ElementsAre("step_00000200"));
  fs::remove_all(dir_ / "step_00000100");
  EXPECT_THAT(message_of([&] { CheckpointReader{dir_}; }), HasSubstr("no complete checkpoint"));
  EXPECT_THAT(message_of([&] { CheckpointReader(dir_ / "none"); }), HasSubstr("is no folder"));
}

TEST_F(CheckpointTest, ANewerFormatIsNamedAndNotSkipped) {
  save(test_model(1), 1);
  const auto folder = save(test_model(2), 2).directory;
  std::string text = io::read_text_file(folder / "manifest.json");
  text.replace(text.find("\"format_version\": 1"), 19, "\"format_version\": 7");
  io::write_file_atomically(folder / "manifest.json", text);
  try {
    CheckpointReader reader(dir_);
    FAIL() << "expected NewerFormatError";
  } catch (const NewerFormatError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), HasSubstr("checkpoint format 7, this halfstep reads up to 1"));
    EXPECT_THAT(error.hint(), HasSubstr("use a halfstep that knows format 7"));
  }
}

TEST_F(CheckpointTest, RetentionDeletesAndNeverTheSavedOne) {
  for (int64_t step = 10; step <= 60; step += 10) {
    save(test_model(1), step, {.keep_last = 2, .keep_every = 30});
  }
  EXPECT_EQ(saved_iterations(dir_), (std::vector<int64_t>{30, 50, 60}));
  const SaveResult result = save(test_model(1), 70, {.keep_last = 1});
  EXPECT_EQ(result.removed, (std::vector<int64_t>{30, 50, 60}));
  EXPECT_EQ(saved_iterations(dir_), (std::vector<int64_t>{70}));
}

TEST_F(CheckpointTest, SavingAnIterationAgainReplacesIt) {
  save(test_model(1), 10);
  save(test_model(2), 10);
  TestTensors loaded = empty_like(test_model(2));
  CheckpointReader(dir_).load(loaded.mutable_slices());
  EXPECT_EQ(loaded.bytes(), test_model(2).bytes());
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), {}), 2);  // the step and `latest`
}

TEST_F(CheckpointTest, LeftoversAreReplacedWithAWarning) {
  save(test_model(1), 10);
  fs::create_directories(dir_ / "step_00000020.saving");
  fs::create_directories(dir_ / "step_00000005.removing");
  fs::create_directories(dir_ / "step_00000099");  // not ours: no manifest, but no leftover either
  io::write_file_atomically(dir_ / ".latest.123.tmp", "x");
  fs::rename(dir_ / "step_00000010", dir_ / "step_00000010.replaced");
  EXPECT_EQ(CheckpointReader(dir_).directory(), dir_ / "step_00000010.replaced");

  const SaveResult result = save(test_model(2), 20);
  EXPECT_THAT(
      result.warnings,
      testing::UnorderedElementsAre(
          HasSubstr("step_00000020.saving"), HasSubstr("step_00000005.removing"),
          HasSubstr(".latest.123.tmp"), HasSubstr("put '" + (dir_ / "step_00000010").string())));
  EXPECT_EQ(saved_iterations(dir_), (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), {}), 4);
}

TEST_F(CheckpointTest, OverlappingOrMalformedSlicesAreOurFault) {
  TestTensors overlapping;
  Slice part = whole_slice(TensorKind::kMaster, "w", {10}, Dtype::kF32);
  part.numel = 6;
  overlapping.add(part);
  part.start = 5;
  part.numel = 5;
  overlapping.add(part);
  EXPECT_THROW(save(overlapping, 1), InternalError);
  TestTensors outside;
  part.start = 6;
  outside.add(part);
  EXPECT_THROW(save(outside, 1), InternalError);
  EXPECT_FALSE(is_checkpoint(dir_));
  EXPECT_TRUE(fs::is_empty(dir_));
}

}  // namespace
}  // namespace halfstep::checkpoint
