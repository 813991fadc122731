#include "halfstep/io/json.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <utility>

#include "halfstep/core/error.h"
#include "halfstep/io/file.h"

namespace halfstep::io {
namespace {

using nlohmann::json;

// A value in a message: short, and always printable.
std::string excerpt(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Deeper documents are refused: much of what one does with a JSON value recurses.
constexpr int kMaxDepth = 64;

// Follows the parser and remembers the keys of each object that is still open.
class DuplicateKeyFinder {
 public:
  // Returns the key if it stands twice in its object.
  const std::string* see(json::parse_event_t event, const json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        open_.emplace_back();
        break;
      case json::parse_event_t::object_end:
        open_.pop_back();
        break;
      case json::parse_event_t::key:
        if (!open_.back().insert(parsed.get_ref<const std::string&>()).second) {
          return parsed.get_ptr<const std::string*>();
        }
        break;
      default:
        break;
    }
    return nullptr;
  }

 private:
  std::vector<std::set<std::string>> open_;
};

}  // namespace

json parse_json(std::string_view text, const std::string& file) {
  // The parser takes a NUL for the end of the text and would ignore what stands behind it.
  if (const size_t nul = text.find('\0'); nul != text.npos) {
    throw InputError(fmt::format("{}: not valid JSON at byte {}: a NUL", file, nul + 1),
                     "check the file's syntax at that place");
  }
  DuplicateKeyFinder keys;
  const auto callback = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) {
      throw InputError(fmt::format("{}: JSON nested deeper than {} levels", file, kMaxDepth),
                       "is this the right file?");
    }
    if (const std::string* key = keys.see(event, parsed)) {
      throw InputError(
          fmt::format("{}: the key {} stands twice in one JSON object", file, excerpt(*key)),
          "each key may stand once");
    }
    return true;
  };
  try {
    return json::parse(text, callback);
  } catch (const json::parse_error& error) {
    throw InputError(fmt::format("{}: not valid JSON at byte {}", file, error.byte),
                     "check the file's syntax at that place");
  } catch (const json::out_of_range&) {
    throw InputError(fmt::format("{}: a number in it is beyond the range of a double", file),
                     "write a smaller one");
  }
}

json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path), path.string());
}

JsonObject::JsonObject(const json& value, std::string file, std::string place)
    : value_(value), file_(std::move(file)), place_(std::move(place)) {
  if (!value_.is_object()) {
    throw InputError(fmt::format("{}: {}got {}, expected a JSON object", file_,
                                 place_.empty() ? "" : place_ + ": ", excerpt(value_)));
  }
}

std::string JsonObject::place_of(std::string_view key) const {
  return place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key);
}

bool JsonObject::has(std::string_view key) const { return value_.contains(key); }

void JsonObject::fail(std::string_view key, std::string_view expected) const {
  const auto it = value_.find(key);
  if (it == value_.end()) {
    throw InputError(
        fmt::format("{}: '{}' is missing, expected {}", file_, place_of(key), expected));
  }
  throw InputError(
      fmt::format("{}: {}: got {}, expected {}", file_, place_of(key), excerpt(*it), expected));
}

const json& JsonObject::at(std::string_view key) const {
  const auto it = value_.find(key);
  if (it == value_.end()) fail(key, "a value");
  return *it;
}

int64_t JsonObject::integer(std::string_view key) const {
  const auto it = value_.find(key);
  // A number without a sign is kept as unsigned; it must still fit.
  if (it == value_.end() || !it->is_number_integer() ||
      (it->is_number_unsigned() &&
       it->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
    fail(key, "an integer");
  }
  return it->get<int64_t>();
}

uint64_t JsonObject::unsigned_integer(std::string_view key) const {
  const auto it = value_.find(key);
  if (it == value_.end() || !it->is_number_unsigned()) fail(key, "a non-negative integer");
  return it->get<uint64_t>();
}

double JsonObject::number(std::string_view key) const {
  const auto it = value_.find(key);
  if (it == value_.end() || !it->is_number()) fail(key, "a number");
  return it->get<double>();
}

bool JsonObject::boolean(std::string_view key) const {
  const auto it = value_.find(key);
  if (it == value_.end() || !it->is_boolean()) fail(key, "true or false");
  return it->get<bool>();
}

std::string JsonObject::string(std::string_view key) const {
  const auto it = value_.find(key);
  if (it == value_.end() || !it->is_string()) fail(key, "a string");
  return it->get<std::string>();
}

std::vector<int64_t> JsonObject::integers(std::string_view key) const {
  const auto it = value_.find(key);
  if (it == value_.end() || !it->is_array()) fail(key, "an array of integers");
  std::vector<int64_t> out;
  out.reserve(it->size());
  for (const json& element : *it) {
    if (!element.is_number_integer() ||
        (element.is_number_unsigned() &&
         element.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
      fail(key, "an array of integers");
    }
    out.push_back(element.get<int64_t>());
  }
  return out;
}

std::vector<std::string> JsonObject::strings(std::string_view key) const {
  const auto it = value_.find(key);
  if (it == value_.end() || !it->is_array()) fail(key, "an array of strings");
  std::vector<std::string> out;
  out.reserve(it->size());
  for (const json& element : *it) {
    if (!element.is_string()) fail(key, "an array of strings");
    out.push_back(element.get<std::string>());
  }
  return out;
}

JsonObject JsonObject::object(std::string_view key) const {
  const auto it = value_.find(key);
  if (it == value_.end() || !it->is_object()) fail(key, "a JSON object");
  return {*it, file_, place_of(key)};
}

std::vector<JsonObject> JsonObject::objects(std::string_view key) const {
  const auto it = value_.find(key);
  if (it == value_.end() || !it->is_array()) fail(key, "an array of JSON objects");
  std::vector<JsonObject> out;
  out.reserve(it->size());
  for (size_t i = 0; i < it->size(); ++i) {
    out.emplace_back((*it)[i], file_, fmt::format("{}[{}]", place_of(key), i));
  }
  return out;
}

}  // namespace halfstep::io
