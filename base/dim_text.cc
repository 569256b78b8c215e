#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "base/dim_expression.h"
#include "base/error.h"
#include "base/nesting.h"

namespace tenon {
namespace {

constexpr std::array<std::string_view, 9> kFunctionNames{
    "", "floordiv", "ceildiv", "mod", "min", "max", "broadcast", "unlessone", "product"};

// sum     = ["-"] product {("+" | "-") product}
// product = factor {"*" factor}
// factor  = number | symbol | 'quoted symbol' | function "(" sum {"," sum} ")" | "(" sum ")"
class DimParser {
 public:
  explicit DimParser(std::string_view text) : text_(text) {}

  Dim whole() {
    const Dim dim = sum();
    if (skip_spaces(); at_ != text_.size()) fail("an operator or the end");
    return dim;
  }

  Shape whole_shape() {
    Shape shape;
    expect('[');
    if (!accept(']')) {
      do shape.push_back(sum());
      while (accept(','));
      expect(']');
    }
    if (skip_spaces(); at_ != text_.size()) fail("the end");
    return shape;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    const std::string found = at_ < text_.size() ? fmt::format("'{}'", text_[at_]) : "the end";
    throw UserError(fmt::format("dimension \"{}\": expected {} at column {}, got {}", beginning(),
                                expected, at_ + 1, found));
  }

  // As much of the text as a message holds.
  std::string beginning() const {
    constexpr size_t kShown = 200;
    if (text_.size() <= kShown) return std::string(text_);
    size_t end = kShown;
    while (end > 0 && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) --end;
    return std::string(text_.substr(0, end)) + "…";
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool accept(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(fmt::format("'{}'", c));
  }

  // Added up at its end: one by one would take time by the square.
  Dim sum() {
    std::vector<Term> terms;
    const auto add = [&](const Dim& summand) {
      const std::vector<Term> more = DimAlgebra::terms(summand);
      terms.insert(terms.end(), more.begin(), more.end());
    };
    add(accept('-') ? negative_product() : product());
    while (true) {
      if (accept('+')) {
        add(product());
      } else if (accept('-')) {
        add(negative_product());
      } else {
        return DimAlgebra::from_terms(std::move(terms));
      }
    }
  }

  Dim product() { return with_more_factors(factor()); }

  // What follows a minus sign. The smallest number has no positive counterpart.
  Dim negative_product() {
    skip_spaces();
    if (at_ == text_.size() || !std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      return Dim(-1) * product();
    }
    return with_more_factors(number("-"));
  }

  Dim with_more_factors(Dim result) {
    while (accept('*')) result = result * factor();
    return result;
  }

  Dim factor() {
    skip_spaces();
    if (accept('(')) {
      const Nesting::Level level = enter();
      const Dim inner = sum();
      expect(')');
      return inner;
    }
    if (accept('\'')) return Dim::symbol(quoted());
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (std::isdigit(static_cast<unsigned char>(c))) return number();
    if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') return name_or_function();
    fail("a number, a symbol or '('");
  }

  Dim number(std::string digits = "") {
    size_t end = at_;
    while (end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end]))) ++end;
    digits += text_.substr(at_, end - at_);
    int64_t value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (result.ec != std::errc()) fail("a number within 64 bits");
    at_ = end;
    return value;
  }

  std::string quoted() {
    std::string symbol;
    while (at_ < text_.size() && text_[at_] != '\'') {
      if (text_[at_] == '\\') ++at_;
      if (at_ < text_.size()) symbol += text_[at_++];
    }
    if (at_ == text_.size()) fail("a closing quote");
    ++at_;
    return symbol;
  }

  Dim name_or_function() {
    const size_t start = at_;
    const auto continues = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
    };
    while (at_ < text_.size() && continues(text_[at_])) ++at_;
    const std::string_view name = text_.substr(start, at_ - start);
    const std::optional<AtomKind> function = parse_function_name(name);
    if (!function) return Dim::symbol(std::string(name));
    std::vector<Dim> arguments;
    expect('(');
    const Nesting::Level level = enter();
    do arguments.push_back(sum());
    while (accept(','));
    expect(')');
    const size_t least = *function == AtomKind::kUnlessOne ? 1 : 2;
    if (arguments.size() < least) fail(fmt::format("{} arguments of {}", least, name));
    return DimAlgebra::apply(*function, arguments);
  }

  // Behind an opening bracket.
  Nesting::Level enter() {
    if (!nesting_.has_room()) fail(Nesting::limit("brackets"));
    return nesting_.enter();
  }

  std::string_view text_;
  size_t at_ = 0;
  Nesting nesting_;
};

}  // namespace

std::string_view function_name(AtomKind kind) { return kFunctionNames[static_cast<size_t>(kind)]; }

std::optional<AtomKind> parse_function_name(std::string_view name) {
  for (size_t i = 1; i < kFunctionNames.size(); ++i) {
    if (kFunctionNames[i] == name) return static_cast<AtomKind>(i);
  }
  return std::nullopt;
}

std::string plain_or_quoted(std::string_view symbol) {
  const auto starts_name = [](char c) {
    return std::isalpha(static_cast<unsigned char>(c)) || c == '_';
  };
  const auto continues_name = [&](char c) {
    return starts_name(c) || std::isdigit(static_cast<unsigned char>(c)) || c == '.';
  };
  const bool plain = !symbol.empty() && starts_name(symbol.front()) &&
                     std::all_of(symbol.begin(), symbol.end(), continues_name) &&
                     !parse_function_name(symbol);
  if (plain) return std::string(symbol);
  std::string quoted = "'";
  for (const char c : symbol) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

std::string text_of(const std::vector<Term>& terms) {
  std::string text;
  for (const Term& term : terms) {
    if (!text.empty() && term.coefficient > 0) text += '+';
    const bool unit = term.coefficient == 1 || term.coefficient == -1;
    if (term.coefficient == -1 && !term.factors.empty()) text += '-';
    if (!unit || term.factors.empty()) text += std::to_string(term.coefficient);
    for (size_t i = 0; i < term.factors.size(); ++i) {
      if (i > 0 || !unit) text += '*';
      text += term.factors[i]->key;
    }
  }
  return text;
}

Dim Dim::parse(std::string_view text) { return DimParser(text).whole(); }

Shape parse_shape(std::string_view text) { return DimParser(text).whole_shape(); }

}  // namespace tenon
