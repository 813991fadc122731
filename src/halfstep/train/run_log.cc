#include "halfstep/train/run_log.h"

#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>

#include "halfstep/core/error.h"

namespace halfstep::train {

RunLog::RunLog(std::FILE* terminal, const std::string& directory, bool quiet)
    : terminal_(terminal), quiet_(quiet), bar_(!quiet && isatty(fileno(terminal)) == 1) {
  if (directory.empty()) return;
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  path_ = directory + "/log.jsonl";
  file_.open(path_, std::ios::app);
  if (!file_) {
    throw InputError(fmt::format("cannot write {}", path_), "choose another --log-dir or --save");
  }
}

void RunLog::line(const std::string& text) {
  clear_bar();
  fmt::print(terminal_, "{}\n", text);
  std::fflush(terminal_);
}

void RunLog::detail(const std::string& text) {
  if (!quiet_) line(text);
}

void RunLog::event(const nlohmann::ordered_json& record) {
  if (path_.empty()) return;
  // A non-finite number has no JSON; it becomes null.
  file_ << record.dump() << std::endl;
  if (!file_) {
    line(fmt::format("cannot write {} (is the disk full?): the run goes on without it", path_));
    path_.clear();
  }
}

void RunLog::progress(int64_t done, int64_t total, const std::string& note) {
  if (!bar_) return;
  constexpr int64_t kWidth = 30;
  const int64_t filled = total > 0 ? kWidth * done / total : kWidth;
  fmt::print(terminal_, "\r\033[K[{:#<{}}{:.<{}}] {}/{} {}", "", filled, "", kWidth - filled, done,
             total, note);
  std::fflush(terminal_);
  bar_shown_ = true;
}

void RunLog::clear_bar() {
  if (bar_shown_) fmt::print(terminal_, "\r\033[K");
  bar_shown_ = false;
}

}  // namespace halfstep::train
