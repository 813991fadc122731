// One line of a fine-tuning file, checked: {"prompt", "completion"} or {"messages"}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace halfstep::data {

struct ExampleLine {
  bool is_chat = false;
  std::string prompt, completion;  // unless it is a chat
  std::string chat;  // the line itself: the order of its keys may matter to a template
  int64_t file = 0, line = 0;
};

// `place` ("FILE:LINE") begins every message. Throws InputError for a line that is no example:
//   no JSON object, or of both kinds; a text where none is, or an empty completion;
//   a conversation that is empty, begins with the assistant, has another role than system,
//   developer, user, assistant and tool, or nothing that the assistant says and is to be learned.
ExampleLine parse_example(std::string_view text, const std::string& place);

}  // namespace halfstep::data
