#include <cctype>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "base/error.h"
#include "base/nesting.h"
#include "graph_partitioner/ir/text.h"

namespace tenon::ir {
namespace {

bool is_word_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/' ||
         c == '-' || c == '$';
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// Characters, words, strings and numbers, with the place of the first that does not fit.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  [[noreturn]] void fail(const std::string& expected) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) {
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n';
    }
    const std::string_view rest = text_.substr(std::min(at_, text_.size())).substr(0, 20);
    throw UserError(fmt::format("graph text, line {}, column {}: expected {}, got '{}'", line,
                                column, expected, rest.substr(0, rest.find('\n'))));
  }

  void skip_space() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (std::isspace(static_cast<unsigned char>(text_[at_]))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  bool at_end() {
    skip_space();
    return at_ >= text_.size();
  }

  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool accept(std::string_view token) {
    skip_space();
    if (text_.substr(std::min(at_, text_.size())).substr(0, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  // A keyword is not the beginning of a longer word.
  bool accept_word(std::string_view keyword) {
    skip_space();
    const size_t end = at_ + keyword.size();
    if (end < text_.size() && is_word_char(text_[end])) return false;
    return accept(keyword);
  }

  void expect(std::string_view token) {
    if (!accept(token)) fail(fmt::format("'{}'", token));
  }

  std::string_view bare_word(const std::string& what) {
    skip_space();
    const size_t start = at_;
    while (at_ < text_.size() && is_word_char(text_[at_])) ++at_;
    if (at_ == start) fail(what);
    return text_.substr(start, at_ - start);
  }

  std::string word(const std::string& what) {
    return peek() == '"' ? quoted() : std::string(bare_word(what));
  }

  std::string quoted() {
    expect("\"");
    std::string result;
    while (at_ < text_.size() && text_[at_] != '"') result += quoted_char();
    if (at_ >= text_.size()) fail("a closing '\"'");
    ++at_;
    return result;
  }

  // Up to the ',' or closer at bracket depth 0: a dim like floordiv(s,16) has its own, and the name
  // of a symbol, 'min(s, 16)', may have any.
  std::string_view until_separator(char closer) {
    skip_space();
    const size_t start = at_;
    int depth = 0;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (depth == 0 && (c == ',' || c == closer)) return text_.substr(start, at_ - start);
      if (c == '\'') skip_quoted();
      depth += (c == '(') - (c == ')');
    }
    fail(fmt::format("'{}'", closer));
  }

  // A number: an integer unless it has a point, an exponent or is inf or nan.
  std::variant<int64_t, float> number() {
    skip_space();
    const size_t start = at_;
    while (at_ < text_.size() && (is_word_char(text_[at_]) || text_[at_] == '+')) ++at_;
    const std::string digits(text_.substr(start, at_ - start));
    int64_t integer = 0;
    const char* end = digits.data() + digits.size();
    const auto parsed = std::from_chars(digits.data(), end, integer);
    if (parsed.ec == std::errc() && parsed.ptr == end) return integer;
    char* float_end = nullptr;
    const float real = std::strtof(digits.c_str(), &float_end);
    if (digits.empty() || *float_end != '\0') {
      at_ = start;
      fail("a number");
    }
    return real;
  }

  int64_t integer() {
    const auto held = number();
    if (!std::holds_alternative<int64_t>(held)) fail("an integer");
    return std::get<int64_t>(held);
  }

  std::vector<std::byte> hex_bytes() {
    std::vector<std::byte> bytes;
    while (at_ + 1 < text_.size() && hex_digit(text_[at_]) >= 0) {
      const int low = hex_digit(text_[at_ + 1]);
      if (low < 0) fail("an even number of hex digits");
      bytes.push_back(static_cast<std::byte>(hex_digit(text_[at_]) * 16 + low));
      at_ += 2;
    }
    return bytes;
  }

 private:
  // From the opening quote to the closing one, or to the last character.
  void skip_quoted() {
    while (at_ + 1 < text_.size() && text_[++at_] != '\'') {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
    }
  }

  char quoted_char() {
    if (text_[at_] != '\\') return text_[at_++];
    ++at_;
    if (at_ >= text_.size()) fail("an escaped character");
    if (text_[at_] != 'x') return text_[at_++];
    if (at_ + 2 >= text_.size()) fail("two hex digits");
    const int high = hex_digit(text_[at_ + 1]), low = hex_digit(text_[at_ + 2]);
    if (high < 0 || low < 0) fail("two hex digits");
    at_ += 3;
    return static_cast<char>(high * 16 + low);
  }

  std::string_view text_;
  size_t at_ = 0;
};

class Parser {
 public:
  Parser(std::string_view text, const FindConstant& find) : scan_(text), find_(find) {}

  Graph parse() {
    if (!scan_.accept_word("graph")) scan_.fail("'graph'");
    const std::string name = scan_.word("the graph's name");
    scan_.expect("{");
    Graph graph = contents();
    graph.name = name;
    if (!scan_.at_end()) scan_.fail("the end");
    return graph;
  }

 private:
  // Lines up to and including the closing brace.
  Graph contents() {
    if (!nesting_.has_room()) scan_.fail(Nesting::limit("bodies"));
    const Nesting::Level level = nesting_.enter();
    Graph graph;
    while (!scan_.accept("}")) {
      if (scan_.accept_word("input")) {
        Value input = value_declaration(graph);
        input.overridable = input.constant != nullptr;
        graph.add_input(std::move(input));
      } else if (scan_.accept_word("const")) {
        Value constant = value_declaration(graph);
        if (!constant.constant) scan_.fail("'= hex:…' or '= sha256:…'");
        graph.add_value(std::move(constant));
      } else if (scan_.accept_word("output")) {
        graph.add_output(value_use(graph));
      } else if (scan_.accept_word("require")) {
        graph.require(requirement());
      } else if (scan_.peek() == '%' || scan_.peek() == '_') {
        node(graph);
      } else {
        scan_.fail("input, const, output, require, a node or '}'");
      }
    }
    return graph;
  }

  Requirement requirement() {
    const std::string_view word = scan_.bare_word("a relation");
    const auto relation = parse_relation(word);
    if (!relation) scan_.fail(fmt::format("a relation before this ('{}' is none)", word));
    const std::vector<Dim> sides = dims('(', ')');
    if (sides.size() != 2) scan_.fail("two sizes before this");
    Requirement result{sides[0], *relation, sides[1], {}, {}};
    if (scan_.accept("name=")) result.node = scan_.quoted();
    result.sources = sources();
    return result;
  }

  std::vector<int> sources() {
    std::vector<int> ids;
    if (!scan_.accept("sources=[")) return ids;
    do {
      ids.push_back(static_cast<int>(scan_.integer()));
    } while (scan_.accept(","));
    scan_.expect("]");
    return ids;
  }

  void node(Graph& graph) {
    Node node;
    do {
      node.outputs.push_back(scan_.accept_word("_") ? kNoValue
                                                    : graph.add_value(declaration(graph)));
    } while (scan_.accept(","));
    scan_.expect("=");
    op(node);
    scan_.expect("(");
    if (!scan_.accept(")")) {
      do {
        node.inputs.push_back(scan_.accept_word("_") ? kNoValue : value_use(graph));
      } while (scan_.accept(","));
      scan_.expect(")");
    }
    attributes(node);
    trailer(node);
    graph.add_node(std::move(node));
  }

  void op(Node& node) {
    node.op = scan_.bare_word("an op");
    while (scan_.accept("::")) node.op += "::" + std::string(scan_.bare_word("an op"));
    if (scan_.accept("@")) node.since_version = static_cast<int>(scan_.integer());
  }

  void attributes(Node& node) {
    if (!scan_.accept("{")) return;
    do {
      std::string name = scan_.word("an attribute's name");
      scan_.expect("=");
      node.attributes.insert_or_assign(std::move(name), attribute());
    } while (scan_.accept(","));
    scan_.expect("}");
  }

  void trailer(Node& node) {
    if (scan_.accept("name=")) node.name = scan_.quoted();
    node.sources = sources();
    if (!scan_.accept_word("body")) return;
    scan_.expect("{");
    node.body = std::make_shared<const Graph>(contents());
  }

  Attribute attribute() {
    if (scan_.peek() == '"') return scan_.quoted();
    if (scan_.accept("floats[]")) return std::vector<float>{};
    if (scan_.accept("strings[]")) return std::vector<std::string>{};
    if (scan_.accept("[")) return list();
    const char first = scan_.peek();
    const bool tensor = std::isalpha(static_cast<unsigned char>(first)) && !scan_.accept("inf") &&
                        !scan_.accept("nan");
    if (tensor) return tensor_attribute();
    if (first == 'i') return std::numeric_limits<float>::infinity();
    if (first == 'n') return std::numeric_limits<float>::quiet_NaN();
    return std::visit([](auto held) { return Attribute(held); }, scan_.number());
  }

  Attribute list() {
    if (scan_.accept("]")) return std::vector<int64_t>{};
    if (scan_.peek() == '"') {
      std::vector<std::string> strings;
      do strings.push_back(scan_.quoted());
      while (scan_.accept(","));
      scan_.expect("]");
      return strings;
    }
    std::vector<int64_t> integers;
    std::vector<float> floats;
    do {
      const auto held = scan_.number();
      if (const auto* integer = std::get_if<int64_t>(&held)) integers.push_back(*integer);
      if (const auto* real = std::get_if<float>(&held)) floats.push_back(*real);
    } while (scan_.accept(","));
    scan_.expect("]");
    if (!integers.empty() && !floats.empty()) scan_.fail("numbers of one kind in a list");
    if (floats.empty()) return integers;
    return floats;
  }

  Attribute tensor_attribute() {
    const DType dtype = element_type();
    scan_.expect("[");
    std::vector<int64_t> dims;
    if (!scan_.accept("]")) {
      do dims.push_back(scan_.integer());
      while (scan_.accept(","));
      scan_.expect("]");
    }
    return tensor(dtype, std::move(dims));
  }

  DType element_type() {
    const std::string_view word = scan_.bare_word("an element type");
    if (word == name(DType::kUndefined)) return DType::kUndefined;
    const std::optional<DType> dtype = parse_dtype(word);
    if (!dtype) scan_.fail(fmt::format("an element type before this ('{}' is none)", word));
    return *dtype;
  }

  TensorPtr tensor(DType dtype, std::vector<int64_t> dims) {
    std::shared_ptr<Tensor> parsed;
    if (scan_.accept("hex:")) {
      parsed = std::make_shared<Tensor>(*Tensor::copy(dtype, std::move(dims), scan_.hex_bytes()));
    } else {
      parsed = left_out(dtype, std::move(dims));
    }
    if (parsed->bytes != storage_bytes(dtype, parsed->elements())) {
      scan_.fail(
          fmt::format("{} bytes of data before this", storage_bytes(dtype, parsed->elements())));
    }
    return parsed;
  }

  // sha256:… bytes:4096
  std::shared_ptr<Tensor> left_out(DType dtype, std::vector<int64_t> dims) {
    scan_.expect("sha256:");
    const std::string digest(scan_.bare_word("a digest"));
    scan_.expect("bytes:");
    const int64_t count = scan_.integer();
    if (count < 0 || count > (int64_t{1} << 36)) scan_.fail("a sensible byte count before this");
    const auto bytes = static_cast<size_t>(count);
    if (!find_) {
      const std::vector<std::byte> zeros(bytes);
      auto tensor = std::make_shared<Tensor>(*Tensor::copy(dtype, std::move(dims), zeros));
      tensor->stands_for = digest;
      return tensor;
    }
    const std::span<const std::byte> found = find_(digest, bytes);
    auto tensor = std::make_shared<Tensor>();
    tensor->dtype = dtype;
    tensor->dims = std::move(dims);
    tensor->data = found.data();
    tensor->bytes = found.size();
    return tensor;
  }

  // %x: f32[batch,128] elements(…)
  Value declaration(const Graph& graph) {
    Value value;
    scan_.expect("%");
    value.name = scan_.word("a value's name");
    if (graph.find(value.name) != kNoValue) {
      scan_.fail(fmt::format("a new name before this ('{}' is taken)", value.name));
    }
    scan_.expect(":");
    value.dtype = element_type();
    if (!scan_.accept("[*]")) value.shape = dims('[', ']');
    if (scan_.accept("elements")) value.elements = dims('(', ')');
    return value;
  }

  Value value_declaration(const Graph& graph) {
    Value value = declaration(graph);
    if (!scan_.accept("=")) return value;
    if (!value.shape || !is_static(*value.shape)) scan_.fail("fixed dims before a constant");
    value.constant = tensor(value.dtype, static_dims(*value.shape));
    return value;
  }

  std::vector<Dim> dims(char opener, char closer) {
    scan_.expect(std::string_view(&opener, 1));
    std::vector<Dim> result;
    if (scan_.accept(std::string_view(&closer, 1))) return result;
    do result.push_back(dim(closer));
    while (scan_.accept(","));
    scan_.expect(std::string_view(&closer, 1));
    return result;
  }

  Dim dim(char closer) {
    const std::string_view text = scan_.until_separator(closer);
    try {
      return Dim::parse(text);
    } catch (const UserError& error) {
      scan_.fail(fmt::format("a dim before this ({})", error.what()));
    }
  }

  ValueId value_use(const Graph& graph) {
    scan_.expect("%");
    const std::string name = scan_.word("a value's name");
    const ValueId id = graph.find(name);
    if (id == kNoValue) scan_.fail(fmt::format("a value defined above ('{}' is not)", name));
    return id;
  }

  Scanner scan_;
  Nesting nesting_;
  const FindConstant& find_;
};

}  // namespace

Graph parse(std::string_view text) { return parse_with_constants(text, {}); }

Graph parse_with_constants(std::string_view text, const FindConstant& find) {
  return Parser(text, find).parse();
}

}  // namespace tenon::ir
