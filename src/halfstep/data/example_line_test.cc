#include "halfstep/data/example_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halfstep/data/test_errors.h"

namespace halfstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ExampleLine, APairIsItsTwoTexts) {
  const ExampleLine line =
      parse_example(R"({"prompt": "a\n\u00e9", "completion": "b", "source": 7})", "f:1");
  EXPECT_FALSE(line.is_chat);
  EXPECT_EQ(line.prompt, "a\n\u00e9");
  EXPECT_EQ(line.completion, "b");
  EXPECT_EQ(parse_example(R"({"prompt": "", "completion": "b"})", "f:1").prompt, "");
}

TEST(ExampleLine, AConversationStaysAsItIsWritten) {
  const std::string text =
      R"({"messages": [{"role": "user", "content": "hi"}, {"content": "ho", "role": "assistant"}]})";
  const ExampleLine line = parse_example(text, "f:1");
  EXPECT_TRUE(line.is_chat);
  EXPECT_EQ(line.chat, text);
}

std::string chat(const std::string& messages) { return R"({"messages": [)" + messages + "]}"; }
const std::string kUser = R"({"role": "user", "content": "hi"})";
const std::string kAssistant = R"({"role": "assistant", "content": "ho"})";

TEST(ExampleLine, EveryShapeOfConversationThatChatModelsKnow) {
  for (const std::string& messages :
       {R"({"role": "system", "content": ""},)" + kUser + "," + kAssistant,
        R"({"role": "developer", "content": "x"},)" + kUser + "," + kAssistant + "," + kUser,
        kUser + R"(,{"role": "assistant", "content": null, "tool_calls": [{}]},)" +
            R"({"role": "tool", "content": "4"},)" + kAssistant,
        kUser + R"(,{"role": "assistant", "content": "a", "weight": 0},)" + kUser + "," +
            kAssistant,
        kUser + R"(,{"role": "assistant", "content": "a", "weight": 1})"}) {
    EXPECT_NO_THROW(parse_example(chat(messages), "f:1")) << messages;
  }
  EXPECT_NO_THROW(parse_example(
      R"({"messages": [)" + kUser + "," + kAssistant + R"(], "tools": [{"name": "f"}]})", "f:1"));
}

TEST(ExampleLine, WhatIsNoExampleIsAnErrorThatNamesThePlaceAndTheKey) {
  const std::string no_content = R"({"role": "assistant"})";
  const std::string silent = R"({"role": "assistant", "content": ""})";
  const std::string calls_nothing = R"({"role": "assistant", "content": "", "tool_calls": []})";
  const std::string parts = R"({"role": "user", "content": [{"type": "text"}]})";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{", "f.jsonl:7"},
      {"[1]", "expected a JSON object"},
      {"{\"prompt\": \"\xff\", \"completion\": \"b\"}", "not valid JSON at byte 13"},
      {R"({"prompt": "\ud800", "completion": "b"})", "not valid JSON at byte 19"},
      {R"({"prompt": "a", "prompt": "b", "completion": "c"})", "prompt"},
      {R"({"prompt": "a"})", "'completion' is missing"},
      {R"({"completion": "a"})", "'prompt' is missing"},
      {R"({"prompt": 1, "completion": "a"})", "prompt: got 1, expected a string"},
      {R"({"prompt": "a", "completion": ""})", "completion: got \"\""},
      {R"({"prompt": "a", "completion": null})", "completion: got null"},
      {R"({"prompt": "a", "completion": "b", "messages": []})", "both"},
      {R"({"text": "a"})", "expected an example"},
      {R"({"question": "a"})", "neither"},
      {R"({"messages": {}})", "messages: got {}"},
      {R"({"messages": []})", "at least one message"},
      {R"({"messages": ["hi"]})", "messages[0]"},
      {chat(R"({"content": "hi"})"), "'messages[0].role' is missing"},
      {chat(kUser + R"(,{"role": "bot", "content": "x"})"), "messages[1].role: got \"bot\""},
      {chat(kUser + "," + no_content), "'messages[1].content' is missing"},
      {chat(kUser + "," + silent), "messages[1].content: got \"\""},
      {chat(kUser + "," + calls_nothing), "messages[1].content: got \"\""},
      {chat(parts + "," + kAssistant), "messages[0].content"},
      {chat(kUser), "a message of the assistant"},
      {chat(kAssistant), "messages[0].role"},
      {chat(kUser + R"(,{"role": "assistant", "content": "a", "weight": 0})"), "of the assistant"},
      {chat(kUser + R"(,{"role": "assistant", "content": "a", "weight": 0.5})"), "weight"},
      {chat(R"({"role": "user", "content": "a", "weight": 0},)" + kAssistant), "weight"},
      {R"({"messages": [)" + kUser + "," + kAssistant + R"(], "tools": {}})", "tools"}};
  for (const auto& [text, complaint] : cases) {
    EXPECT_THAT(input_error_of([&] { parse_example(text, "f.jsonl:7"); }),
                AllOf(StartsWith("f.jsonl:7"), HasSubstr(complaint)))
        << text;
  }
}

TEST(ExampleLine, DocumentsAreSentToDataBuild) {
  try {
    parse_example(R"({"text": "a"})", "f:1");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.hint(), HasSubstr("halfstep data build"));
  }
}

}  // namespace
}  // namespace halfstep::data
