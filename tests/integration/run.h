// Training runs of a tiny model inside the test process, and what they said.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "halfstep/core/error.h"

namespace halfstep::testing {

using Args = std::vector<std::string>;
using Json = nlohmann::json;

// A folder that is deleted with the object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

struct RunResult {
  std::string terminal;
  std::vector<Json> events;        // of log.jsonl
  std::optional<ExitCode> failed;  // the code and the message of the Error that ended it
  std::string error;

  std::vector<Json> all(const std::string& event) const;
  // The values of a key over all log lines: losses, learning rates.
  std::vector<double> series(const std::string& key) const;
  // The only event of its kind.
  Json one(const std::string& event) const;
};

// A file of several documents' worth of text in `folder`.
std::string write_text(const Folder& folder, const std::string& name, int variant = 0);

// A 1-layer model on `text`, 6 steps of 2 sequences, each step logged; a few milliseconds a step.
Args tiny_run(const std::string& text);

// `more` after `args`: what is given twice, the last one wins.
Args operator+(Args args, const Args& more);
// Without a flag and its one value.
Args without(Args args, const std::string& flag);

// Runs to the end, or to the Error. Every run writes its log to a folder of its own unless `args`
// name one.
RunResult run(const Args& args);

// All bytes of the shards in a checkpoint.
std::string checkpoint_bytes(const std::string& step_folder);

}  // namespace halfstep::testing
