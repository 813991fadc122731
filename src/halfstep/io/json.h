// JSON from files, strictly: duplicate keys, trailing text and syntax errors are InputErrors with
// the file and the byte position; a missing or wrongly typed value is one with the file and the
// value's place ("manifest.json: t.default: got \"x\", expected an integer").
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace halfstep::io {

// `file` is the name in messages.
nlohmann::json parse_json(std::string_view text, const std::string& file);
nlohmann::json read_json_file(const std::filesystem::path& path);

// One object inside a JSON document, with checked access to its values. Refers to the document,
// which must outlive it.
class JsonObject {
 public:
  // Throws InputError if `value` is no object. `place` is its path of keys, empty at the top.
  JsonObject(const nlohmann::json& value, std::string file, std::string place = {});

  bool has(std::string_view key) const;
  const nlohmann::json& value() const { return value_; }

  // The value of a key that must be there. Integers must be written as integers and fit.
  int64_t integer(std::string_view key) const;
  uint64_t unsigned_integer(std::string_view key) const;
  double number(std::string_view key) const;
  bool boolean(std::string_view key) const;
  std::string string(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<std::string> strings(std::string_view key) const;
  JsonObject object(std::string_view key) const;
  std::vector<JsonObject> objects(std::string_view key) const;
  const nlohmann::json& at(std::string_view key) const;

  // Throws InputError "FILE: PLACE.KEY: got …, expected …".
  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

 private:
  std::string place_of(std::string_view key) const;
  const nlohmann::json& value_;
  std::string file_, place_;
};

}  // namespace halfstep::io
