// Where a run writes to people and to programs: lines and a progress bar on the terminal, and one
// JSON object per line in log.jsonl (docs/interface.md §2.3). A resumed run appends to the same
// file. Used on the loop's thread only.
#pragma once

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace halfstep::train {

class RunLog {
 public:
  // `directory` empty: no log.jsonl. The bar is drawn only if `terminal` is one and not with
  // `quiet`.
  RunLog(std::FILE* terminal, const std::string& directory, bool quiet);
  // Writes nothing: that of a rank other than 0.
  RunLog() = default;

  // A line that is always shown, and one of the start-up report and the summary. Output that cannot
  // be written ends no run.
  void line(const std::string& text);
  void detail(const std::string& text);

  // One object in log.jsonl; its first key says what it is ("event"). A log that cannot be written
  // any more is said once and ends no run.
  void event(const nlohmann::ordered_json& record);

  // Redraws the bar.
  void progress(int64_t done, int64_t total, const std::string& note);

 private:
  void clear_bar();
  void show(const std::string& text);

  std::FILE* terminal_ = nullptr;
  std::ofstream file_;
  std::string path_;
  bool quiet_ = true;
  bool bar_ = false;
  bool bar_shown_ = false;
};

}  // namespace halfstep::train
