// A .jsonl file of documents: every line is a document, a bad line or blank, in order and counted
// right. And the same bytes as a text file: one document.
#include "halfstep/data/documents.h"

#include <nlohmann/json.hpp>

#include "halfstep/core/test_folder.h"
#include "halfstep/data/line_reader.h"
#include "target.h"

namespace halfstep::fuzz {
namespace {

constexpr int64_t kMaxLineBytes = 200;

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

void check_line_reader(const std::string& path, const std::vector<std::string>& lines) {
  data::LineReader reader(path, kMaxLineBytes);
  std::string line;
  for (size_t i = 0; i < lines.size(); ++i) {
    check(reader.next(line), "a line is read");
    check(line == lines[i].substr(0, kMaxLineBytes), "its text, cut where it is too long");
    check(reader.too_long() == (lines[i].size() > kMaxLineBytes), "a cut is told");
    check(reader.line_number() == static_cast<int64_t>(i + 1), "lines are counted");
  }
  check(!reader.next(line), "the end is told");
}

void check_documents(const std::string& path, const std::vector<std::string>& lines) {
  std::vector<std::optional<std::string>> found(lines.size());  // an empty optional: a bad line
  std::vector<bool> seen(lines.size());
  int64_t last = 0;
  const auto see = [&](int64_t line) {
    check(line > last && line <= static_cast<int64_t>(lines.size()), "lines come in order");
    last = line;
    seen[static_cast<size_t>(line - 1)] = true;
  };
  data::DocumentOptions options;
  options.max_line_bytes = kMaxLineBytes;
  options.on_bad_line = [&](const data::BadLine& bad) { see(bad.line); };
  data::for_each_document({path}, options, [&](data::Document&& document) {
    see(document.line);
    found[static_cast<size_t>(document.line - 1)] = std::move(document.text);
  });
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool blank = lines[i].find_first_not_of(" \t\r") == std::string::npos &&
                       lines[i].size() <= kMaxLineBytes;
    check(seen[i] != blank, "every line that is not blank is a document or a bad line");
    if (!found[i]) continue;
    const auto value = nlohmann::json::parse(lines[i]);
    check(value.at("text").get<std::string>() == *found[i], "a document is its line's text");
  }
}

}  // namespace
}  // namespace halfstep::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  static const TestFolder folder;
  const std::string_view text = fuzz::text_of(data, size);
  const std::vector<std::string> lines = fuzz::split_lines(text);
  const std::string path = folder.write("d.jsonl", text);
  fuzz::check_line_reader(path, lines);
  fuzz::check_documents(path, lines);
  // Without on_bad_line the first bad line ends it.
  fuzz::accepted([&] {
    int64_t count = 0;
    data::for_each_document({path}, {}, [&](data::Document&&) { ++count; });
    return count;
  });
  return 0;
}
