// How the values of flags are read and shown; used by the flag table only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace halfstep::train {

// Whole numbers in [min, max], also "4KiB" and "2e6". Throws UsageError naming the flag.
int64_t integer_value(const std::string& flag, const std::string& text, int64_t min, int64_t max);
// In [min, max], or strictly between them if `open`.
double number_value(const std::string& flag, const std::string& text, double min, double max,
                    bool open);

// Not empty: that is how a variable of a script looks that was never set. `expected` is what stands
// for the value in the help.
std::string text_value(const std::string& flag, const std::string& text,
                       const std::string& expected);

template <typename Field>
using Choices = std::vector<std::pair<std::string, Field>>;

[[noreturn]] void throw_no_choice(const std::string& flag, const std::string& text,
                                  const std::string& names);

template <typename Field>
std::string choice_names(const Choices<Field>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) names += (names.empty() ? "" : ",") + name;
  return names;
}

template <typename Field>
Field choice_value(const std::string& flag, const std::string& text,
                   const Choices<Field>& choices) {
  for (const auto& [name, value] : choices) {
    if (name == text) return value;
  }
  throw_no_choice(flag, text, choice_names(choices));
}

// The name of a value; null for "not given".
template <typename Field>
nlohmann::ordered_json choice_json(const Field& field, const Choices<Field>& choices) {
  for (const auto& [name, value] : choices) {
    if (value == field) return name;
  }
  return nullptr;
}

}  // namespace halfstep::train
