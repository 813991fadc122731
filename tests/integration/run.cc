#include "run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "halfstep/comm/single_rank.h"
#include "halfstep/data/tokenizer.h"
#include "halfstep/hf/folder_writer.h"
#include "halfstep/train/check_options.h"
#include "halfstep/train/flags.h"
#include "halfstep/train/resume.h"
#include "halfstep/train/run.h"

namespace halfstep::testing {

namespace fs = std::filesystem;

std::vector<Json> RunResult::all(const std::string& event) const {
  std::vector<Json> found;
  std::copy_if(events.begin(), events.end(), std::back_inserter(found),
               [&](const Json& e) { return e["event"] == event; });
  return found;
}

std::vector<double> RunResult::series(const std::string& key) const {
  std::vector<double> values;
  for (const Json& event : all("step")) values.push_back(event.at(key).get<double>());
  return values;
}

Json RunResult::one(const std::string& event) const {
  const auto found = all(event);
  if (found.size() != 1) {
    ADD_FAILURE() << found.size() << " events '" << event << "'; " << error;
    return Json::object();
  }
  return found.front();
}

std::string write_text(const TestFolder& folder, const std::string& name, int variant) {
  const std::string path = folder / name;
  std::ofstream file(path);
  // Sentences that repeat with changes: there is something to learn within a few steps.
  for (int i = 0; i < 300; ++i) {
    file << "the " << (i * (7 + variant)) % 11 << " dogs saw " << (i * i + variant) % 13
         << " cats\n";
  }
  return path;
}

const Args kStochasticO2{"--bf16",
               "--o2-optimizer",
               "--o2-gradient",
               "--no-gradient-accumulation-fusion",
               "--state-rounding",
               "stochastic",
               "--grad-accumulation-rounding",
               "stochastic",
               "--global-batch-size",
               "4"};

Args tiny_run(const std::string& text) {
  return {"--num-layers",
          "1",
          "--hidden-size",
          "16",
          "--ffn-hidden-size",
          "32",
          "--num-attention-heads",
          "2",
          "--kv-channels",
          "8",
          "--seq-length",
          "16",
          "--micro-batch-size",
          "2",
          "--train-iters",
          "6",
          "--lr",
          "1e-2",
          "--log-interval",
          "1",
          "--eval-iters",
          "0",
          "--matmul-precision",
          "fp32",
          "--num-threads",
          "1",
          "--tokenizer",
          "byte",
          "--split",
          "90,10,0",
          "--data",
          text};
}

Args operator+(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Args without(Args args, const std::string& flag) {
  const auto position = std::find(args.begin(), args.end(), flag);
  if (position == args.end()) {
    ADD_FAILURE() << flag << " is not there";
  } else {
    args.erase(position, position + 2);
  }
  return args;
}

WeightValue constant(float value) {
  return [value](const arch::Parameter&, int64_t) { return value; };
}

Args hf_run(const Args& args, const std::string& folder, const WeightValue& value) {
  const auto options = train::checked_options(train::parse_flags(args).options);
  const arch::ModelConfig config =
      train::model_config_from(options, data::ByteTokenizer::kVocabSize);
  std::vector<std::vector<float>> weights;
  std::vector<hf::WeightSlot> slots;
  for (const arch::Parameter& parameter : arch::parameter_list(config)) {
    std::vector<float>& elements = weights.emplace_back(parameter.numel());
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = value(parameter, static_cast<int64_t>(i));
    }
    slots.push_back({elements.data(), Dtype::kF32});
  }
  hf::save_folder(folder, config, slots);
  return args + Args{"--load-hf", folder};
}

RunResult run(const Args& args) {
  RunResult result;
  TestFolder own_log;
  char* text = nullptr;
  size_t size = 0;
  std::FILE* terminal = open_memstream(&text, &size);
  std::string log_dir;
  try {
    train::Options options =
        train::checked_options(train::resumed_options(train::parse_flags(args).options));
    if (options.log_dir.empty()) options.log_dir = own_log / "log";
    log_dir = options.log_dir;
    comm::SingleRank ranks;
    train::run_training(options, ranks, terminal);
  } catch (const Error& error) {
    result.failed = error.code();
    result.error = std::string(error.what()) + " / " + error.hint();
  }
  std::fclose(terminal);
  result.terminal.assign(text, size);
  std::free(text);
  std::ifstream log(log_dir + "/log.jsonl");
  for (std::string line; std::getline(log, line);) result.events.push_back(Json::parse(line));
  return result;
}

std::string checkpoint_bytes(const std::string& step_folder) {
  std::vector<fs::path> shards;
  for (const auto& entry : fs::directory_iterator(step_folder)) {
    if (entry.path().extension() == ".safetensors") shards.push_back(entry.path());
  }
  std::sort(shards.begin(), shards.end());
  EXPECT_FALSE(shards.empty()) << step_folder;
  std::string bytes;
  for (const fs::path& shard : shards) {
    std::ifstream file(shard, std::ios::binary);
    bytes.append(std::istreambuf_iterator<char>(file), {});
  }
  return bytes;
}

}  // namespace halfstep::testing
