#include "kernels/autotune/text_message.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "base/error.h"
#include "base/nesting.h"

namespace tenon::kernels {
namespace {

using Kind = TextField::Kind;

bool is_word_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_word(char c) {
  return is_word_start(c) || std::isdigit(static_cast<unsigned char>(c)) != 0;
}

class TextParser {
 public:
  TextParser(std::string_view text, int line) : text_(text), line_(line) {}

  TextMessage parse() { return fields('\0'); }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw UserError(fmt::format("line {}: {}", line_, what));
  }

  // The next character that counts; 0 at the end.
  char peek() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
        if (c == '\n') ++line_;
        ++at_;
      } else {
        return c;
      }
    }
    return '\0';
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  std::string word() {
    const char first = peek();
    if (!is_word_start(first)) fail("a field's name was expected");
    const size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  // Up to `close`, which is taken.
  TextMessage fields(char close) {
    if (!nesting_.has_room()) fail("expected " + Nesting::limit("messages"));
    const Nesting::Level level = nesting_.enter();
    TextMessage message;
    while (true) {
      const char next = peek();
      if (next == '\0' && close != '\0') fail("the text ends inside of a message");
      if (next == close) {
        if (close != '\0') ++at_;
        return message;
      }
      field(message);
      if (!take(',')) take(';');
    }
  }

  void field(TextMessage& into) {
    TextField field;
    field.line = line_;
    field.name = word();
    const bool has_colon = take(':');
    if (has_colon && take('[')) return list(field, into);
    value(field, has_colon);
    into.fields.push_back(std::move(field));
  }

  // A repeated field in one place.
  void list(const TextField& named, TextMessage& into) {
    if (take(']')) return;
    do {
      TextField item = named;
      value(item, /*may_be_scalar=*/true);
      into.fields.push_back(std::move(item));
    } while (take(','));
    if (!take(']')) fail("']' was expected");
  }

  void value(TextField& field, bool may_be_scalar) {
    const char next = peek();
    if (next == '{' || next == '<') {
      ++at_;
      field.kind = Kind::kMessage;
      field.message = fields(next == '{' ? '}' : '>');
      return;
    }
    if (!may_be_scalar) fail(fmt::format("'{}' needs ':' or '{{'", field.name));
    scalar(field, next);
  }

  void scalar(TextField& field, char next) {
    if (next == '"' || next == '\'') {
      field.kind = Kind::kText;
      while (peek() == '"' || peek() == '\'') quoted(field.scalar);
    } else if (is_word_start(next)) {
      field.kind = Kind::kWord;
      field.scalar = word();
    } else {
      field.kind = Kind::kNumber;
      const size_t begin = at_;
      const auto is_part = [](char c) { return is_word(c) || c == '.' || c == '-' || c == '+'; };
      while (at_ < text_.size() && is_part(text_[at_])) ++at_;
      field.scalar = text_.substr(begin, at_ - begin);
      if (field.scalar.empty()) fail(fmt::format("'{}' has no value", field.name));
    }
  }

  void quoted(std::string& into) {
    const char quote = text_[at_++];
    while (true) {
      if (at_ >= text_.size() || text_[at_] == '\n') fail("a text has no closing quote");
      const char c = text_[at_++];
      if (c == quote) return;
      into += c == '\\' ? escaped() : c;
    }
  }

  char escaped() {
    if (at_ >= text_.size()) fail("a text has no closing quote");
    constexpr std::string_view kNames = "nrtabfv\\'\"", kMeans = "\n\r\t\a\b\f\v\\'\"";
    const char c = text_[at_++];
    if (const size_t place = kNames.find(c); place != kNames.npos) return kMeans[place];
    const bool is_hex = c == 'x' || c == 'X';
    if (!is_hex) --at_;
    const char* begin = text_.data() + at_;
    const char* end = begin + std::min<size_t>(is_hex ? 2 : 3, text_.size() - at_);
    int code = 0;
    const auto [next, error] = std::from_chars(begin, end, code, is_hex ? 16 : 8);
    if (error != std::errc{} || code < 0 || code > 255) fail("an escape in a text is unknown");
    at_ += static_cast<size_t>(next - begin);
    return static_cast<char>(code);
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_;
  Nesting nesting_;
};

std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (byte < ' ' || byte == 0x7f) {
      quoted += fmt::format("\\{:03o}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// Short ones without messages stand on one line.
bool fits_a_line(const TextMessage& message) {
  constexpr size_t kMost = 4;
  return message.fields.size() <= kMost && std::ranges::all_of(message.fields, [](const auto& f) {
           return f.kind != Kind::kMessage && f.scalar.size() < 40;
         });
}

std::string scalar_text(const TextField& field) {
  return fmt::format("{}: {}", field.name,
                     field.kind == Kind::kText ? quote(field.scalar) : field.scalar);
}

[[noreturn]] void refuse(const TextField& field, std::string_view wanted) {
  throw UserError(fmt::format("line {}: '{}' is not {}", field.line, field.name, wanted));
}

template <typename Number>
Number parse_number(const TextField& field, std::string_view wanted) {
  Number value{};
  const char* end = field.scalar.data() + field.scalar.size();
  const auto [next, error] = std::from_chars(field.scalar.data(), end, value);
  if (field.kind != Kind::kNumber || error != std::errc{} || next != end) refuse(field, wanted);
  return value;
}

}  // namespace

const TextField* TextMessage::find(std::string_view name) const {
  const auto found = std::ranges::find(fields, name, &TextField::name);
  return found == fields.end() ? nullptr : &*found;
}

std::string TextMessage::text(std::string_view name) const {
  const TextField* field = find(name);
  if (field == nullptr) return "";
  if (field->kind != Kind::kText) refuse(*field, "a text");
  return field->scalar;
}

int64_t TextMessage::integer(std::string_view name, int64_t otherwise) const {
  const TextField* field = find(name);
  return field == nullptr ? otherwise : parse_number<int64_t>(*field, "a whole number");
}

double TextMessage::number(std::string_view name) const {
  const TextField* field = find(name);
  return field == nullptr ? 0 : parse_number<double>(*field, "a number");
}

TextMessage TextMessage::message(std::string_view name) const {
  const TextField* field = find(name);
  if (field == nullptr) return {};
  if (field->kind != Kind::kMessage) refuse(*field, "a message");
  return field->message;
}

void TextMessage::add(std::string name, std::string_view text) {
  if (!text.empty()) fields.push_back({std::move(name), Kind::kText, std::string(text), {}});
}

void TextMessage::add(std::string name, int64_t value) {
  if (value != 0) fields.push_back({std::move(name), Kind::kNumber, fmt::format("{}", value), {}});
}

void TextMessage::add(std::string name, double value) {
  if (value != 0) fields.push_back({std::move(name), Kind::kNumber, fmt::format("{}", value), {}});
}

void TextMessage::add(std::string name, TextMessage message) {
  fields.push_back({std::move(name), Kind::kMessage, "", std::move(message)});
}

std::string TextMessage::print(int indent) const {
  std::string text;
  const std::string space(static_cast<size_t>(indent), ' ');
  for (const TextField& field : fields) {
    if (field.kind != Kind::kMessage) {
      text += fmt::format("{}{}\n", space, scalar_text(field));
    } else if (fits_a_line(field.message)) {
      std::string inner;
      for (const TextField& each : field.message.fields) inner += scalar_text(each) + " ";
      text += fmt::format("{}{} {{ {}}}\n", space, field.name, inner);
    } else {
      text += fmt::format("{}{} {{\n{}{}}}\n", space, field.name, field.message.print(indent + 2),
                          space);
    }
  }
  return text;
}

TextMessage parse_text_message(std::string_view text, int line) {
  return TextParser(text, line).parse();
}

}  // namespace tenon::kernels
