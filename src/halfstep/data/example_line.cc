#include "halfstep/data/example_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "halfstep/core/error.h"
#include "halfstep/io/json.h"

namespace halfstep::data {
namespace {

constexpr std::array<std::string_view, 5> kRoles{"system", "developer", "user", "assistant",
                                                 "tool"};
constexpr char kForms[] =
    R"(an example is {"prompt": …, "completion": …} or {"messages": [{"role": …, "content": …}, …]})";

bool is_present(const io::JsonObject& object, std::string_view key) {
  return object.has(key) && !object.at(key).is_null();
}

// Checks a message; whether it is a turn of the assistant that is to be learned.
bool is_learned(const io::JsonObject& message) {
  const std::string role = message.string("role");
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    message.fail("role", "system, developer, user, assistant or tool");
  }
  const bool assistant = role == "assistant";
  // An empty list calls none.
  const bool calls_tools = assistant && is_present(message, "tool_calls") &&
                           message.value()["tool_calls"] != nlohmann::json::array();
  const bool has_content = is_present(message, "content") || !calls_tools;
  if (has_content && message.string("content").empty() && assistant && !calls_tools) {
    message.fail("content", "a text that is not empty, as there is nothing to learn from it");
  }
  if (!is_present(message, "weight")) return assistant;
  if (!assistant) message.fail("weight", "it in messages of the assistant only");
  const int64_t weight = message.integer("weight");
  if (weight != 0 && weight != 1) message.fail("weight", "0 (not learned) or 1");
  return weight == 1;
}

void check_chat(const io::JsonObject& line) {
  const std::vector<io::JsonObject> messages = line.objects("messages");
  if (messages.empty()) line.fail("messages", "at least one message");
  const auto num_learned = std::count_if(messages.begin(), messages.end(), is_learned);
  if (messages[0].string("role") == "assistant") {
    messages[0].fail("role", "system or user, whom the assistant can answer");
  }
  if (num_learned == 0) line.fail("messages", "a message of the assistant, to learn from");
  if (is_present(line, "tools")) line.objects("tools");
}

}  // namespace

ExampleLine parse_example(std::string_view text, const std::string& place) {
  const nlohmann::json value = io::parse_json(text, place);
  const io::JsonObject line(value, place);
  ExampleLine example;
  example.is_chat = line.has("messages");
  const bool is_pair = line.has("prompt") || line.has("completion");
  if (example.is_chat && is_pair) {
    throw InputError(fmt::format("{}: both \"messages\" and \"prompt\" or \"completion\"", place),
                     kForms);
  }
  if (example.is_chat) {
    check_chat(line);
    example.chat = text;
  } else if (is_pair) {
    example.prompt = line.string("prompt");
    example.completion = line.string("completion");
    if (example.completion.empty()) {
      line.fail("completion", "a text that is not empty, as there is nothing to learn from it");
    }
  } else if (line.has("text")) {
    throw InputError(fmt::format("{}: a document (\"text\"), expected an example", place),
                     "documents of JSON lines are pre-training data: make .bin/.idx files of them "
                     "with `halfstep data build` and give those with --data-path");
  } else {
    throw InputError(
        fmt::format("{}: neither \"prompt\" and \"completion\" nor \"messages\"", place), kForms);
  }
  return example;
}

}  // namespace halfstep::data
