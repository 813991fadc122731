#include "run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "halfstep/train/check_options.h"
#include "halfstep/train/flags.h"
#include "halfstep/train/run.h"

namespace halfstep::testing {

namespace fs = std::filesystem;

Folder::Folder() {
  static std::atomic<int> count = 0;
  path_ = fs::temp_directory_path() /
          ("halfstep_integration_" + std::to_string(getpid()) + "_" + std::to_string(count++));
  fs::create_directories(path_);
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

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

std::string write_text(const Folder& folder, const std::string& name, int variant) {
  const std::string path = folder / name;
  std::ofstream file(path);
  // Sentences that repeat with changes: there is something to learn within a few steps.
  for (int i = 0; i < 300; ++i) {
    file << "the " << (i * (7 + variant)) % 11 << " dogs saw " << (i * i + variant) % 13
         << " cats\n";
  }
  return path;
}

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

RunResult run(const Args& args) {
  RunResult result;
  Folder own_log;
  char* text = nullptr;
  size_t size = 0;
  std::FILE* terminal = open_memstream(&text, &size);
  std::string log_dir;
  try {
    train::Options options = train::checked_options(train::parse_flags(args).options);
    if (options.log_dir.empty()) options.log_dir = own_log / "log";
    log_dir = options.log_dir;
    train::run_training(options, terminal);
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
