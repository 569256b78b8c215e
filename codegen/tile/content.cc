#include "codegen/tile/content.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::codegen {
namespace {

// Writes what the printer (print.cc) would, as words that can be told apart from each other by
// their place: lists begin with their length. Values go by the order in which they are defined, and
// index constants by their number, as in the text.
class ContentWriter {
 public:
  explicit ContentWriter(const Kernel& kernel) : kernel_(kernel), names_(kernel.types.size()) {}

  std::string run() {
    integer(kernel_.pdl);
    integer(std::max(kernel_.ctas_per_sm, 0));
    integer(static_cast<int64_t>(kernel_.parameters.size()));
    for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
      write(kernel_.parameters[i]);
      define(static_cast<ValueId>(i));
    }
    write(kernel_.body);
    return std::move(out_);
  }

 private:
  enum Kind : uint8_t { kNoValue, kDefined, kIndexNumber };
  struct Name {
    Kind kind = kNoValue;
    int64_t number = 0;
  };

  void byte(uint8_t value) { out_ += static_cast<char>(value); }
  // Most are small: one byte says how many follow.
  void integer(int64_t value) {
    char bytes[sizeof(value)];
    int count = 0;
    const bool negative = value < 0;
    for (auto rest = static_cast<uint64_t>(negative ? ~value : value); rest != 0; rest >>= 8) {
      bytes[count++] = static_cast<char>(rest & 255);
    }
    byte(static_cast<uint8_t>(count + (negative ? 16 : 0)));
    out_.append(bytes, count);
  }
  // The text knows one NaN.
  void number(double value) {
    if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
    integer(std::bit_cast<int64_t>(value));
  }
  void word(std::string_view text) {
    integer(static_cast<int64_t>(text.size()));
    out_ += text;
  }
  void integers(const std::vector<int64_t>& values) {
    integer(static_cast<int64_t>(values.size()));
    for (const int64_t value : values) integer(value);
  }

  void write(const Type& type) {
    byte(static_cast<uint8_t>(type.kind));
    byte(static_cast<uint8_t>(type.dtype));
    byte(static_cast<uint8_t>(type.shape.size()));
    for (const int size : type.shape) integer(size);
  }

  void write(const Parameter& parameter) {
    word(parameter.name);
    byte(parameter.constant ? 2 : parameter.own ? 1 : 0);
    byte(parameter.aligned);
    write(parameter.type);
  }

  void define(ValueId id) { names_[static_cast<size_t>(id)] = {kDefined, next_++}; }
  void define_all(const std::vector<ValueId>& ids) {
    for (const ValueId id : ids) define(id);
  }

  void use(ValueId id) {
    const Name name = id == kNone ? Name{} : names_.at(static_cast<size_t>(id));
    byte(name.kind);
    if (name.kind != kNoValue) integer(name.number);
  }

  void write(const Region& region) {
    define_all(region.arguments);
    integer(std::ranges::count_if(region.operations, [](const Operation& operation) {
      return operation.op != Op::kIndexConstant;
    }));
    for (const Operation& operation : region.operations) write(operation);
  }

  void write(const Operation& op) {
    if (op.op == Op::kIndexConstant) {
      names_[static_cast<size_t>(op.results[0])] = {kIndexNumber, op.integer};
      return;
    }
    byte(static_cast<uint8_t>(op.op));
    if (has_function(op)) byte(static_cast<uint8_t>(op.fn));
    integer(static_cast<int64_t>(op.operands.size()));
    for (const ValueId id : op.operands) use(id);
    write_attributes(op);
    integer(static_cast<int64_t>(op.results.size()));
    for (const ValueId id : op.results) write(kernel_.types[static_cast<size_t>(id)]);
    define_all(op.results);
    for (const Region& region : op.regions) write(region);
  }

  static bool has_function(const Operation& op) {
    switch (op.op) {
      case Op::kUnary:
      case Op::kBinary:
      case Op::kTernary:
      case Op::kCompare:
      case Op::kReduce:
        return true;
      default:
        return false;
    }
  }

  // Those that mean something, as in the text: the others may hold anything.
  void write_attributes(const Operation& op) {
    switch (op.op) {
      case Op::kConstant:
        return write_constant(op);
      case Op::kIota:
      case Op::kConcat:
      case Op::kReduce:
        return integer(op.axis);
      case Op::kUnary:
        if (op.fn < Fn::kQuantizeF8E4M3FN || op.fn > Fn::kQuantizeF4E2M1) return;
        byte(encode_rule(op.integer).saturate);
        return byte(static_cast<uint8_t>(encode_rule(op.integer).round));
      case Op::kSlice:
      case Op::kPermute:
      case Op::kTileDot:
      case Op::kRead:
        return integers(op.integers);
      case Op::kAlloc:
      case Op::kRing:
      case Op::kTmaLoad:
      case Op::kPipeline:
        return integer(op.integer);
      case Op::kLoad:
        return number(has_extents(op) ? op.number : 0);
      case Op::kGather:
        return number(op.operands[3] != kNone ? op.number : 0);
      case Op::kDot:
        integer(op.integer);
        integers(op.integers);
        return byte(op.tf32);
      default:
        return;
    }
  }

  void write_constant(const Operation& op) {
    const bool real = is_floating(kernel_.types[static_cast<size_t>(op.results[0])].dtype);
    integer(static_cast<int64_t>(op.integers.size()));
    if (op.integers.empty()) return real ? number(op.number) : integer(op.integer);
    for (const int64_t entry : op.integers) {
      real ? number(std::bit_cast<double>(entry)) : integer(entry);
    }
  }

  bool has_extents(const Operation& load) const {
    const size_t rank = kernel_.types[static_cast<size_t>(load.results[0])].shape.size();
    return std::any_of(load.operands.begin() + static_cast<ptrdiff_t>(2 + rank),
                       load.operands.end(), [](ValueId id) { return id != kNone; });
  }

  const Kernel& kernel_;
  std::vector<Name> names_;  // by value
  int64_t next_ = 0;
  std::string out_;
};

}  // namespace

Digest content_of(const Kernel& kernel) { return sha256(ContentWriter(kernel).run()); }

namespace {

size_t operation_count(const Region& region) {
  size_t count = region.operations.size();
  for (const Operation& operation : region.operations) {
    for (const Region& inner : operation.regions) count += operation_count(inner);
  }
  return count;
}

}  // namespace

size_t operation_count(const Kernel& kernel) { return operation_count(kernel.body); }

}  // namespace tenon::codegen
