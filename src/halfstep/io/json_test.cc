#include "halfstep/io/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "halfstep/core/error.h"

namespace halfstep::io {
namespace {

using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no InputError";
}

std::string parse_fault(const std::string& text) {
  return message_of([&] { parse_json(text, "c.json"); });
}

TEST(Json, SyntaxErrorsNameFileAndByte) {
  EXPECT_EQ(parse_fault("{\"a\": 1,}"), "c.json: not valid JSON at byte 9");
  EXPECT_EQ(parse_fault(""), "c.json: not valid JSON at byte 1");
  EXPECT_EQ(parse_fault("{} x"), "c.json: not valid JSON at byte 4");
  EXPECT_EQ(parse_fault("{\"\xff\": 1}"), "c.json: not valid JSON at byte 3");
  EXPECT_EQ(parse_fault("{\"a\": 1e999}"),
            "c.json: a number in it is beyond the range of a double");
}

TEST(Json, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_THAT(parse_fault(R"({"a": 1, "a": 1})"), HasSubstr("the key \"a\" stands twice"));
  EXPECT_THAT(parse_fault(R"({"x": [{"b": 1, "\u0062": 2}]})"), HasSubstr("the key \"b\""));
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "c.json"));
}

TEST(Json, RefusesDeepNesting) {
  const std::string deep(200'000, '[');
  EXPECT_THAT(parse_fault(deep), HasSubstr("nested deeper than"));
}

TEST(Json, ValuesOfTheWrongTypeNameTheirPlace) {
  const auto document = parse_json(
      R"({"t": {"default": "x", "big": 18446744073709551615, "half": 0.5, "list": [1, "y"]}})",
      "m.json");
  const JsonObject t = JsonObject(document, "m.json").object("t");
  const auto fault = [&](auto&& get) { return message_of([&] { get(); }); };
  EXPECT_EQ(fault([&] { t.integer("default"); }),
            "m.json: t.default: got \"x\", expected an integer");
  EXPECT_EQ(fault([&] { t.integer("none"); }), "m.json: 't.none' is missing, expected an integer");
  EXPECT_EQ(fault([&] { t.integer("big"); }),
            "m.json: t.big: got 18446744073709551615, expected an integer");
  EXPECT_EQ(t.unsigned_integer("big"), UINT64_MAX);
  EXPECT_EQ(fault([&] { t.integer("half"); }), "m.json: t.half: got 0.5, expected an integer");
  EXPECT_EQ(t.number("half"), 0.5);
  EXPECT_THAT(fault([&] { t.number("default"); }), HasSubstr("expected a number"));
  EXPECT_THAT(fault([&] { t.boolean("half"); }), HasSubstr("expected true or false"));
  EXPECT_THAT(fault([&] { t.string("half"); }), HasSubstr("expected a string"));
  EXPECT_THAT(fault([&] { t.integers("list"); }), HasSubstr("expected an array of integers"));
  EXPECT_THAT(fault([&] { t.strings("list"); }), HasSubstr("expected an array of strings"));
  EXPECT_THAT(fault([&] { t.object("list"); }), HasSubstr("expected a JSON object"));
  EXPECT_THAT(fault([&] { t.objects("list"); }),
              HasSubstr("m.json: t.list[0]: got 1, expected a JSON object"));
  EXPECT_THAT(fault([&] { JsonObject(document["t"]["list"], "m.json"); }),
              HasSubstr("expected a JSON object"));
}

}  // namespace
}  // namespace halfstep::io
