#include "kernels/autotune/text_message.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace tenon::kernels {
namespace {

TEST(TextMessage, ReadsWhatPeopleAndTheLibraryWrite) {
  const TextMessage message = parse_text_message(R"(
    # a comment
    name: "a \"b\"\n" 'c' "\101\x42"   # texts side by side are one
    count: -3, time: 1.5e2;
    inner { flag: true }
    other: < count: 7 >
    list: [1, 2]
    unknown_enum: SOME_WORD
  )");
  EXPECT_EQ(message.text("name"), "a \"b\"\ncAB");
  EXPECT_EQ(message.integer("count"), -3);
  EXPECT_EQ(message.number("time"), 150);
  EXPECT_EQ(message.message("inner").fields.at(0).scalar, "true");
  EXPECT_EQ(message.message("other").integer("count"), 7);
  EXPECT_EQ(std::ranges::count(message.fields, "list", &TextField::name), 2);
  EXPECT_EQ(message.integer("absent", 5), 5);
}

TEST(TextMessage, PrintsWhatParsesBack) {
  TextMessage inner, message;
  inner.add("value", int64_t{12});
  message.add("text", std::string_view("quote \" slash \\ line \n tab \t"));
  message.add("time", 0.1);
  message.add("knob", inner);
  inner.add("knob", inner);
  message.add("nested", inner);
  const std::string text = message.print();
  EXPECT_NE(text.find("knob { value: 12 }\n"), text.npos) << text;
  EXPECT_EQ(parse_text_message(text).print(), text);
  EXPECT_EQ(parse_text_message(text).text("text"), "quote \" slash \\ line \n tab \t");
  EXPECT_EQ(parse_text_message(text).number("time"), 0.1);
}

std::string why_not(std::string_view text) {
  try {
    (void)parse_text_message(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(TextMessage, RefusesBadTextWithItsLine) {
  EXPECT_EQ(why_not("a: 1\nb {\n c: 2\n"), "line 4: the text ends inside of a message");
  EXPECT_EQ(why_not("a: \"open\n\""), "line 1: a text has no closing quote");
  EXPECT_EQ(why_not("a: \"\\"), "line 1: a text has no closing quote");
  EXPECT_EQ(why_not("a: \"\\q\""), "line 1: an escape in a text is unknown");
  EXPECT_EQ(why_not("a: \"\\777\""), "line 1: an escape in a text is unknown");
  EXPECT_EQ(why_not("a: \"\\x\""), "line 1: an escape in a text is unknown");
  EXPECT_EQ(why_not("a 1"), "line 1: 'a' needs ':' or '{'");
  EXPECT_EQ(why_not("a:"), "line 1: 'a' has no value");
  EXPECT_EQ(why_not("a: [1"), "line 1: ']' was expected");
  EXPECT_EQ(why_not("}"), "line 1: a field's name was expected");
  EXPECT_EQ(why_not("[some.extension]: 1"), "line 1: a field's name was expected");
}

TEST(TextMessage, RefusesAFieldOfAnotherType) {
  const TextMessage message =
      parse_text_message("text: 3\nnumber: \"3\"\nlarge: 99999999999999999999");
  EXPECT_THROW((void)message.text("text"), UserError);
  EXPECT_THROW((void)message.integer("number"), UserError);
  EXPECT_THROW((void)message.integer("large"), UserError);
  EXPECT_THROW((void)message.message("number"), UserError);
}

}  // namespace
}  // namespace tenon::kernels
