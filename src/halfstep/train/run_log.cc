#include "halfstep/train/run_log.h"

#include <fmt/core.h>
#include <stdio_ext.h>
#include <unistd.h>

#include "halfstep/core/error.h"
#include "halfstep/io/file.h"

namespace halfstep::train {

RunLog::RunLog(std::FILE* terminal, const std::string& directory, bool quiet)
    : terminal_(terminal), quiet_(quiet), bar_(!quiet && isatty(fileno(terminal)) == 1) {
  if (directory.empty()) return;
  io::create_directories(directory);
  path_ = directory + "/log.jsonl";
  file_.open(path_, std::ios::app);
  if (!file_) {
    throw InputError(fmt::format("cannot write {}", path_), "choose another --log-dir or --save");
  }
}

void RunLog::line(const std::string& text) {
  clear_bar();
  show(text + "\n");
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
  show(fmt::format("\r\033[K[{:#<{}}{:.<{}}] {}/{} {}", "", filled, "", kWidth - filled, done,
                   total, note));
  bar_shown_ = true;
}

void RunLog::clear_bar() {
  if (bar_shown_) show("\r\033[K");
  bar_shown_ = false;
}

// Not fmt::print: that throws when the terminal is a file on a full disk. What could not be written
// is dropped, so that nobody takes it for a failure later.
void RunLog::show(const std::string& text) {
  if (terminal_ == nullptr) return;
  std::fwrite(text.data(), 1, text.size(), terminal_);
  if (std::fflush(terminal_) == 0) return;
  __fpurge(terminal_);
  std::clearerr(terminal_);
}

}  // namespace halfstep::train
