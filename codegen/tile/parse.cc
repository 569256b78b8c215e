#include <fmt/format.h>

#include <bit>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "base/nesting.h"
#include "codegen/tile/op_info.h"
#include "codegen/tile/text.h"
#include "codegen/tile/verify.h"

namespace tenon::codegen {

namespace {

template <typename Enum>
std::unordered_map<std::string_view, Enum> by_name(Enum first, Enum last) {
  std::unordered_map<std::string_view, Enum> names;
  for (int i = static_cast<int>(first); i <= static_cast<int>(last); ++i) {
    names[name(static_cast<Enum>(i))] = static_cast<Enum>(i);
  }
  return names;
}

Op op_of(Fn fn) {
  if (fn <= Fn::kQuantizeF4E2M1) return Op::kUnary;
  if (fn <= Fn::kShiftRight) return Op::kBinary;
  return fn == Fn::kFma ? Op::kTernary : Op::kCompare;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}
  Kernel run();

 private:
  // ---- characters
  [[noreturn]] void fail(const std::string& why) const {
    throw UserError(fmt::format("tile kernel, line {}: {}", line_, why));
  }
  void skip() {
    while (at_ < text_.size() && (std::isspace(static_cast<unsigned char>(text_[at_])) != 0)) {
      line_ += text_[at_++] == '\n';
    }
  }
  bool accept(std::string_view token) {
    skip();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (accept(token)) return;
    fail(fmt::format("expected '{}' before '{}'", token, text_.substr(at_, 20)));
  }
  std::string_view span_of(std::string_view extra) {
    skip();
    size_t start = at_;
    auto belongs = [&](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || extra.find(c) != extra.npos;
    };
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    if (start == at_) fail(fmt::format("expected a word before '{}'", text_.substr(at_, 20)));
    return text_.substr(start, at_ - start);
  }
  std::string_view word() { return span_of("_."); }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  // Commits only when the whole word matches, so that `extents` is not read as `ext`.
  bool accept_word(std::string_view expected) {
    size_t at = at_;
    int line = line_;
    if (std::isalpha(static_cast<unsigned char>(peek())) != 0 && word() == expected) return true;
    at_ = at;
    line_ = line;
    return false;
  }
  double number() {
    std::string digits(span_of("_.+-"));
    char* end = nullptr;
    double value = std::strtod(digits.c_str(), &end);
    if (end != digits.c_str() + digits.size()) fail("'" + digits + "' is no number");
    return value;
  }
  // Of `axis` and the like.
  int small_integer() {
    const int64_t value = integer();
    if (value != static_cast<int>(value)) fail(fmt::format("{} is too large", value));
    return static_cast<int>(value);
  }
  int64_t integer() {
    std::string digits(span_of("-"));
    char* end = nullptr;
    errno = 0;
    int64_t value = std::strtoll(digits.c_str(), &end, 10);
    if (errno != 0 || end != digits.c_str() + digits.size()) fail("'" + digits + "' is no integer");
    return value;
  }

  // ---- types and values
  Type type();
  std::vector<Type> result_types(size_t count);
  ValueId define(const Type& type) {
    kernel_.types.push_back(type);
    return static_cast<ValueId>(kernel_.types.size() - 1);
  }
  std::string_view value_name() {
    expect("%");
    return span_of("_");
  }
  void bind(std::string_view name, ValueId id) {
    if (!values_.emplace(name, id).second) fail(fmt::format("%{} is defined twice", name));
  }
  ValueId use();
  void uses(std::vector<ValueId>& into) {
    do into.push_back(use());
    while (accept(","));
  }
  std::vector<ValueId> list() {
    std::vector<ValueId> ids;
    expect("(");
    uses(ids);
    expect(")");
    return ids;
  }
  ValueId index_constant(int64_t value);

  // ---- operations
  void parameters();
  Region region(std::vector<ValueId> arguments);
  Operation operation();
  void head(Operation& op, std::string_view word);
  void constant(Operation& op);
  void resolve_constant(Operation& op);
  void place(Operation& op) {  // buffer[offset]
    op.operands.push_back(use());
    expect("[");
    op.operands.push_back(use());
    expect("]");
  }
  void access(Operation& op);
  void complete_access(Operation& op, size_t rank);
  void carry(Operation& op, std::vector<ValueId>& arguments);
  void for_loop(Operation& op);
  void pipeline(Operation& op);
  std::vector<int64_t> integers();
  void results(Operation& op, const std::vector<std::string_view>& names);

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  Nesting nesting_;
  Kernel kernel_;
  std::unordered_map<std::string_view, ValueId> values_;
  std::map<int64_t, ValueId> constants_;
  std::vector<Operation> prologue_;
  std::vector<ValueId> strides_, extents_;  // of the access being read
  std::vector<double> table_;               // of the constant being read
  const std::unordered_map<std::string_view, Op> ops_ = by_name(Op::kTask, Op::kYield);
  const std::unordered_map<std::string_view, Fn> fns_ = by_name(Fn::kNeg, Fn::kGreaterEqual);
};

Type Parser::type() {
  if (accept_word("index")) return Type::index();
  bool buffer = accept_word("buffer"), ring = !buffer && accept_word("ring");
  if (buffer || ring) expect("<");
  std::string_view word = span_of("");
  std::optional<DType> dtype = parse_dtype(word);
  if (!dtype) fail(fmt::format("'{}' is no element type", word));
  if (buffer) {
    expect(">");
    return Type::buffer(*dtype);
  }
  Type tile = Type::tile(*dtype);
  expect("[");
  while (!accept("]")) {
    int64_t size = integer();
    if (size < 1 || size > kMaxTileElements) fail(fmt::format("{} is no tile size", size));
    tile.shape.push_back(static_cast<int>(size));
    accept(",");
  }
  if (ring) {
    expect(">");
    tile.kind = Type::Kind::kRing;
  }
  return tile;
}

std::vector<int64_t> Parser::integers() {
  std::vector<int64_t> list;
  expect("(");
  do list.push_back(integer());
  while (accept(","));
  expect(")");
  return list;
}

ValueId Parser::index_constant(int64_t value) {
  auto [entry, is_new] = constants_.try_emplace(value, kNone);
  if (is_new) {
    entry->second = define(Type::index());
    prologue_.push_back({.op = Op::kIndexConstant, .results = {entry->second}, .integer = value});
  }
  return entry->second;
}

ValueId Parser::use() {
  if (accept("_")) return kNone;
  if (peek() != '%') return index_constant(integer());
  std::string_view name = value_name();
  auto found = values_.find(name);
  if (found == values_.end()) fail(fmt::format("%{} is not defined here", name));
  return found->second;
}

void Parser::parameters() {
  expect("(");
  while (!accept(")")) {
    std::string_view name = value_name();
    expect(":");
    bool constant = accept_word("constant"), own = accept_word("own");
    bool aligned = accept_word("aligned");
    Type t = type();
    bind(name, define(t));
    kernel_.parameters.push_back({std::string(name), t, constant, own, aligned});
    accept(",");
  }
}

// Up to the closing brace.
Region Parser::region(std::vector<ValueId> arguments) {
  Region region{std::move(arguments), {}};
  expect("{");
  if (!nesting_.has_room()) fail("expected " + Nesting::limit("regions"));
  const Nesting::Level level = nesting_.enter();
  while (!accept("}")) region.operations.push_back(operation());
  return region;
}

void Parser::constant(Operation& op) {
  bool table = accept("[");
  table_.clear();
  do {
    std::string digits(span_of("_.+-"));
    char *end = nullptr, *integer_end = nullptr;
    double real = std::strtod(digits.c_str(), &end);
    int64_t integer = std::strtoll(digits.c_str(), &integer_end, 10);
    if (end != digits.c_str() + digits.size()) fail("'" + digits + "' is no number");
    bool is_real = integer_end != end;
    op.number = real;
    op.integer = is_real ? 0 : integer;
    if (!table) continue;
    op.integers.push_back(op.integer);
    table_.push_back(real);
  } while (table && accept(","));
  if (table) expect("]");
}

void Parser::access(Operation& op) {
  strides_.clear();
  extents_.clear();
  if (accept_word("strides")) strides_ = list();
  if (accept_word("extents")) extents_ = list();
  if (accept_word("fill")) op.number = number();
}

void Parser::complete_access(Operation& op, size_t rank) {
  if (extents_.empty()) extents_.assign(rank, kNone);
  op.operands.insert(op.operands.end(), strides_.begin(), strides_.end());
  op.operands.insert(op.operands.end(), extents_.begin(), extents_.end());
}

void Parser::for_loop(Operation& op) {
  std::vector<ValueId> arguments{define(Type::index())};
  bind(value_name(), arguments[0]);
  expect("=");
  op.operands.push_back(use());
  expect("to");
  op.operands.push_back(use());
  expect("step");
  op.operands.push_back(use());
  carry(op, arguments);
  op.regions.push_back(region(std::move(arguments)));
}

// The carried values of a loop, if there are any: carry(%5 = %2, …).
void Parser::carry(Operation& op, std::vector<ValueId>& arguments) {
  if (!accept_word("carry")) return;
  expect("(");
  do {
    std::string_view name = value_name();
    expect("=");
    op.operands.push_back(use());
    if (op.operands.back() == kNone) fail("a carried value needs an initial value");
    Type carried = kernel_.types[op.operands.back()];
    arguments.push_back(define(carried));
    bind(name, arguments.back());
  } while (accept(","));
  expect(")");
}

void Parser::pipeline(Operation& op) {
  op.integer = integer();
  op.operands.push_back(use());
  expect("to");
  op.operands.push_back(use());
  for (std::string_view half : {"produce", "consume"}) {
    expect(half);
    expect("(");
    std::vector<ValueId> arguments;
    for (int i = 0; i < 2; ++i) {
      if (i > 0) expect(",");
      arguments.push_back(define(Type::index()));
      bind(value_name(), arguments.back());
    }
    expect(")");
    if (half == "consume") carry(op, arguments);
    op.regions.push_back(region(std::move(arguments)));
  }
}

// The operation after its name and before its type.
void Parser::head(Operation& op, std::string_view word) {
  if (word.starts_with("reduce.")) {
    op.op = Op::kReduce;
    word.remove_prefix(7);
    auto fn = fns_.find(word);
    if (fn == fns_.end()) fail(fmt::format("no reduction '{}'", word));
    op.fn = fn->second;
    op.operands.push_back(use());
    expect("axis");
    op.axis = small_integer();
    return;
  }
  if (auto fn = fns_.find(word); fn != fns_.end()) {
    op.fn = fn->second;
    op.op = op_of(op.fn);
    uses(op.operands);
    if (op.fn >= Fn::kQuantizeF8E4M3FN && op.fn <= Fn::kQuantizeF4E2M1) {
      EncodeRule rule{.saturate = accept_word("saturate")};
      if (accept_word("up")) rule.round = RoundMode::kUp;
      if (accept_word("down")) rule.round = RoundMode::kDown;
      op.integer = encode_attribute(rule);
    }
    return;
  }
  auto found = ops_.find(word);
  if (found == ops_.end()) fail(fmt::format("no operation is called '{}'", word));
  op.op = found->second;
  switch (op.op) {
    case Op::kTask:
      break;
    case Op::kConstant:
      constant(op);
      break;
    case Op::kIota:
      expect("axis");
      op.axis = small_integer();
      break;
    case Op::kAlloc:
    case Op::kRing:
      op.integer = integer();
      break;
    case Op::kSlice:
    case Op::kPermute:
      op.operands.push_back(use());
      expect(op.op == Op::kSlice ? "offsets" : "bits");
      op.integers = integers();
      break;
    case Op::kConcat:
      uses(op.operands);
      expect("axis");
      op.axis = small_integer();
      break;
    case Op::kLoad:
      place(op);
      access(op);
      break;
    case Op::kStore:
      place(op);
      expect(",");
      op.operands.push_back(use());
      access(op);
      break;
    case Op::kGather:
    case Op::kScatter:
      place(op);
      expect(",");
      uses(op.operands);
      if (accept_word("fill")) op.number = number();
      break;
    case Op::kPrefetch:
    case Op::kArrive:
      place(op);
      break;
    case Op::kBulkLoad:
      place(op);
      expect(",");
      place(op);
      break;
    case Op::kTileDot:
      for (int i = 0; i < 3; ++i) {
        place(op);
        expect(",");
      }
      uses(op.operands);
      expect("block");
      op.integers = integers();
      break;
    case Op::kTmaLoad:
      place(op);
      expect(",");
      op.operands.push_back(use());
      expect("[");
      uses(op.operands);
      expect("]");
      expect("of");
      for (ValueId size : list()) op.operands.push_back(size);
      if (accept_word("groups")) op.integer = integer();
      break;
    case Op::kDot:
      uses(op.operands);
      if (accept_word("groups")) op.integer = integer();
      if (accept_word("blocks")) {
        op.integers = {integer()};
        for (const char* word : {"from", "zeros"}) {
          expect(word);
          op.integers.push_back(integer());
        }
      }
      op.tf32 = accept_word("tf32");
      break;
    case Op::kRead:
      op.operands.push_back(use());
      expect("[");
      uses(op.operands);
      expect("]");
      if (accept_word("strides")) op.integers = integers();
      op.operands.push_back(accept_word("extent") ? use() : kNone);
      break;
    case Op::kPipeline:
      pipeline(op);
      break;
    case Op::kFor:
      for_loop(op);
      break;
    case Op::kIf:
      op.operands.push_back(use());
      op.regions.push_back(region({}));
      expect("else");
      op.regions.push_back(region({}));
      break;
    case Op::kYield:
      if (peek() == '%' || std::isdigit(static_cast<unsigned char>(peek())) != 0 || peek() == '-') {
        uses(op.operands);
      }
      break;
    default:
      uses(op.operands);
  }
}

void Parser::results(Operation& op, const std::vector<std::string_view>& names) {
  if (!names.empty()) expect(":");
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) expect(",");
    op.results.push_back(define(type()));
    bind(names[i], op.results.back());
  }
  if (info(op.op).stored >= 0) {
    expect(":");
    Type stated = type();
    const auto value = static_cast<size_t>(info(op.op).stored);
    if (value >= op.operands.size() || op.operands[value] == kNone ||
        kernel_.types[op.operands[value]] != stated) {
      fail(fmt::format("the value is not {}", codegen::text(stated)));
    }
    if (op.op == Op::kStore) complete_access(op, stated.shape.size());
  }
  if (op.op == Op::kLoad && !op.results.empty()) {
    complete_access(op, kernel_.types[op.results[0]].shape.size());
  }
}

// The type, read last, says whether a constant's numbers are reals or integers.
void Parser::resolve_constant(Operation& op) {
  if (!is_floating(kernel_.types[op.results[0]].dtype)) {
    op.number = 0;
    return;
  }
  op.integer = 0;
  if (!op.integers.empty()) op.number = 0;
  for (size_t i = 0; i < op.integers.size(); ++i) {
    op.integers[i] = std::bit_cast<int64_t>(table_[i]);
  }
}

Operation Parser::operation() {
  std::vector<std::string_view> names;
  if (peek() == '%') {
    do names.push_back(value_name());
    while (accept(","));
    expect("=");
  }
  Operation op;
  head(op, word());
  results(op, names);
  if (op.op == Op::kConstant && !op.results.empty()) {
    resolve_constant(op);
  }
  return op;
}

Kernel Parser::run() {
  expect("kernel");
  expect("@");
  kernel_.name = word();
  parameters();
  kernel_.pdl = accept_word("pdl");
  if (accept_word("ctas_per_sm")) kernel_.ctas_per_sm = small_integer();
  kernel_.body = region({});
  skip();
  if (at_ != text_.size()) fail("text after the kernel");
  kernel_.body.operations.insert(kernel_.body.operations.begin(), prologue_.begin(),
                                 prologue_.end());
  if (Support support = verify(kernel_); !support) throw UserError(support.reason);
  return std::move(kernel_);
}

}  // namespace

Kernel parse(std::string_view text) { return Parser(text).run(); }

}  // namespace tenon::codegen
