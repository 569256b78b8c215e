#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

#include "codegen/tile/op_info.h"
#include "codegen/tile/text.h"
#include "codegen/tile/verify.h"

namespace tenon::codegen {

namespace {

// The shortest text that reads back as the same number, always recognisable as a float.
std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  std::string digits = fmt::format("{}", value);
  return digits.find_first_of(".enf") == std::string::npos ? digits + ".0" : digits;
}

class Printer {
 public:
  using Remark = std::function<std::string(ValueId)>;
  explicit Printer(const Kernel& kernel, Remark remark = {})
      : kernel_(kernel), remark_(std::move(remark)) {}

  std::string run() {
    std::vector<std::string> parameters;
    for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
      const Parameter& parameter = kernel_.parameters[i];
      names_[static_cast<ValueId>(i)] = "%" + parameter.name;
      parameters.push_back(fmt::format("%{}: {}{}{}", parameter.name,
                                       parameter.constant ? "constant "
                                       : parameter.own    ? "own "
                                                          : "",
                                       parameter.aligned ? "aligned " : "", text(parameter.type)));
    }
    out_ = fmt::format(
        "kernel @{}({}) {}{}{{\n", kernel_.name, fmt::join(parameters, ", "),
        kernel_.pdl ? "pdl " : "",
        kernel_.ctas_per_sm > 0 ? fmt::format("ctas_per_sm {} ", kernel_.ctas_per_sm) : "");
    indent_ = 1;
    print(kernel_.body);
    return out_ + "}\n";
  }

  KernelWords all_words() {
    keeps_lines_ = true;
    run();
    KernelWords out{std::vector<std::string>(kernel_.types.size()), std::move(lines_)};
    for (auto& [id, name] : names_) out.names[static_cast<size_t>(id)] = std::move(name);
    return out;
  }

 private:
  void print(const Region& region) {
    for (const Operation& operation : region.operations) {
      size_t begin = out_.size();
      print(operation);
      if (!keeps_lines_) continue;
      size_t first = std::min(out_.find_first_not_of(' ', begin), out_.size());
      lines_[&operation] = out_.substr(first, out_.find('\n', first) - first);
    }
  }

  void print(const Operation& op);
  void print_for(const Operation& op);
  void print_if(const Operation& op);
  void print_pipeline(const Operation& op);
  std::string words(const Operation& op);
  std::string access(const Operation& op, size_t first, size_t rank) const;

  void line(std::string_view content) {
    out_ += std::string(2 * indent_, ' ');
    out_ += content;
    out_ += '\n';
  }
  const std::string& define(ValueId id) { return names_[id] = fmt::format("%{}", next_++); }
  std::string define_all(const std::vector<ValueId>& ids) {
    std::vector<std::string> names;
    for (ValueId id : ids) names.push_back(define(id));
    return fmt::format("{}", fmt::join(names, ", "));
  }
  std::string use(ValueId id) const { return id == kNone ? "_" : names_.at(id); }
  std::string use_all(const std::vector<ValueId>& ids, size_t first = 0) const {
    std::vector<std::string> names;
    for (size_t i = first; i < ids.size(); ++i) names.push_back(use(ids[i]));
    return fmt::format("{}", fmt::join(names, ", "));
  }
  std::string types(const std::vector<ValueId>& ids) const {
    std::vector<std::string> names;
    for (ValueId id : ids) names.push_back(text(kernel_.types[id]));
    return fmt::format("{}", fmt::join(names, ", "));
  }

  static std::string groups(const Operation& op) {
    return op.integer == 0 ? "" : fmt::format(" groups {}", op.integer);
  }

  static std::string blocks(const Operation& op) {
    return op.integers.empty() ? ""
                               : fmt::format(" blocks {} from {} zeros {}", op.integers[0],
                                             op.integers[1], op.integers[2]);
  }

  std::string remarks(const std::vector<ValueId>& ids) const {
    std::string out;
    for (ValueId id : ids) {
      if (remark_ && kernel_.types[id].kind == Type::Kind::kTile) out += "  # " + remark_(id);
    }
    return out;
  }

  const Kernel& kernel_;
  Remark remark_;
  std::unordered_map<ValueId, std::string> names_;
  std::unordered_map<const Operation*, std::string> lines_;
  std::string out_;
  int indent_ = 0, next_ = 0;
  bool keeps_lines_ = false;
};

std::string Printer::access(const Operation& op, size_t first, size_t rank) const {
  std::vector<ValueId> strides(op.operands.begin() + first, op.operands.begin() + first + rank);
  std::vector<ValueId> extents(op.operands.begin() + first + rank, op.operands.end());
  std::string out;
  if (rank > 0) out += fmt::format(" strides({})", use_all(strides));
  bool whole = std::ranges::all_of(extents, [](ValueId id) { return id == kNone; });
  if (whole) return out;
  out += fmt::format(" extents({})", use_all(extents));
  if (op.op == Op::kLoad) out += " fill " + number_text(op.number);
  return out;
}

// The operation without results and types.
std::string Printer::words(const Operation& op) {
  switch (op.op) {
    case Op::kConstant: {
      bool real = is_floating(kernel_.types[op.results[0]].dtype);
      if (op.integers.empty()) {
        return "constant " + (real ? number_text(op.number) : fmt::format("{}", op.integer));
      }
      std::vector<std::string> entries;
      for (int64_t entry : op.integers) {
        entries.push_back(real ? number_text(std::bit_cast<double>(entry))
                               : fmt::format("{}", entry));
      }
      return fmt::format("constant [{}]", fmt::join(entries, ", "));
    }
    case Op::kIota:
      return fmt::format("iota axis {}", op.axis);
    case Op::kUnary:
    case Op::kBinary:
    case Op::kTernary:
    case Op::kCompare: {
      bool quantizes = op.fn >= Fn::kQuantizeF8E4M3FN && op.fn <= Fn::kQuantizeF4E2M1;
      std::string rule;
      if (quantizes && encode_rule(op.integer).saturate) rule += " saturate";
      if (quantizes && encode_rule(op.integer).round == RoundMode::kUp) rule += " up";
      if (quantizes && encode_rule(op.integer).round == RoundMode::kDown) rule += " down";
      return fmt::format("{} {}{}", name(op.fn), use_all(op.operands), rule);
    }
    case Op::kSlice:
      return fmt::format("slice {} offsets({})", use(op.operands[0]), fmt::join(op.integers, ", "));
    case Op::kConcat:
      return fmt::format("concat {} axis {}", use_all(op.operands), op.axis);
    case Op::kPermute:
      return fmt::format("permute {} bits({})", use(op.operands[0]), fmt::join(op.integers, ", "));
    case Op::kReduce:
      return fmt::format("reduce.{} {} axis {}", name(op.fn), use(op.operands[0]), op.axis);
    case Op::kAlloc:
    case Op::kRing:
      return fmt::format("{} {}", name(op.op), op.integer);
    case Op::kLoad:
      return fmt::format("load {}[{}]{}", use(op.operands[0]), use(op.operands[1]),
                         access(op, 2, kernel_.types[op.results[0]].shape.size()));
    case Op::kStore:
      return fmt::format("store {}[{}], {}{}", use(op.operands[0]), use(op.operands[1]),
                         use(op.operands[2]),
                         access(op, 3, kernel_.types[op.operands[2]].shape.size()));
    case Op::kGather:
      return fmt::format("gather {}[{}], {}{}", use(op.operands[0]), use(op.operands[1]),
                         use_all(op.operands, 2),
                         op.operands[3] == kNone ? "" : " fill " + number_text(op.number));
    case Op::kScatter:
      return fmt::format("scatter {}[{}], {}", use(op.operands[0]), use(op.operands[1]),
                         use_all(op.operands, 2));
    case Op::kPrefetch:
    case Op::kArrive:
      return fmt::format("{} {}[{}]", name(op.op), use(op.operands[0]), use(op.operands[1]));
    case Op::kTileDot:
      return fmt::format("tile_dot {}[{}], {}[{}], {}[{}], {} block({})", use(op.operands[0]),
                         use(op.operands[1]), use(op.operands[2]), use(op.operands[3]),
                         use(op.operands[4]), use(op.operands[5]), use_all(op.operands, 6),
                         fmt::join(op.integers, ", "));
    case Op::kBulkLoad:
      return fmt::format("bulk_load {}[{}], {}[{}]", use(op.operands[0]), use(op.operands[1]),
                         use(op.operands[2]), use(op.operands[3]));
    case Op::kTmaLoad:
      return fmt::format("tma_load {}[{}], {}[{}, {}] of({}, {}, {}){}", use(op.operands[0]),
                         use(op.operands[1]), use(op.operands[2]), use(op.operands[3]),
                         use(op.operands[4]), use(op.operands[5]), use(op.operands[6]),
                         use(op.operands[7]), groups(op));
    case Op::kDot:
      return fmt::format("dot {}{}{}{}", use_all(op.operands), groups(op), blocks(op),
                         op.tf32 ? " tf32" : "");
    case Op::kRead:
      return fmt::format(
          "read {}[{}, {}]{}{}", use(op.operands[0]), use(op.operands[1]), use(op.operands[2]),
          op.integers.empty() ? "" : fmt::format(" strides({})", fmt::join(op.integers, ", ")),
          op.operands[3] == kNone ? "" : fmt::format(" extent {}", use(op.operands[3])));
    default:
      if (op.operands.empty()) return std::string(name(op.op));
      return fmt::format("{} {}", name(op.op), use_all(op.operands));
  }
}

void Printer::print(const Operation& op) {
  // Index constants stand inline where they are used.
  if (op.op == Op::kIndexConstant) {
    names_[op.results[0]] = fmt::format("{}", op.integer);
    return;
  }
  if (op.op == Op::kFor) return print_for(op);
  if (op.op == Op::kIf) return print_if(op);
  if (op.op == Op::kPipeline) return print_pipeline(op);
  std::string content = words(op);
  if (!op.results.empty()) {
    content = fmt::format("{} = {} : {}", define_all(op.results), content, types(op.results));
  } else if (const int stored = info(op.op).stored; stored >= 0) {
    content += fmt::format(" : {}", text(kernel_.types[op.operands[stored]]));
  }
  line(content + remarks(op.results));
}

void Printer::print_for(const Operation& op) {
  std::string head = op.results.empty() ? "" : define_all(op.results) + " = ";
  const Region& body = op.regions[0];
  head += fmt::format("for {} = {} to {} step {}", define(body.arguments[0]), use(op.operands[0]),
                      use(op.operands[1]), use(op.operands[2]));
  std::vector<std::string> carried;
  for (size_t i = 1; i < body.arguments.size(); ++i) {
    carried.push_back(fmt::format("{} = {}", define(body.arguments[i]), use(op.operands[2 + i])));
  }
  if (!carried.empty()) head += fmt::format(" carry({})", fmt::join(carried, ", "));
  line(head + " {");
  ++indent_;
  print(body);
  --indent_;
  line(op.results.empty() ? "}" : fmt::format("}} : {}{}", types(op.results), remarks(op.results)));
}

void Printer::print_if(const Operation& op) {
  std::string head = op.results.empty() ? "" : define_all(op.results) + " = ";
  line(fmt::format("{}if {} {{", head, use(op.operands[0])));
  ++indent_;
  print(op.regions[0]);
  --indent_;
  line("} else {");
  ++indent_;
  print(op.regions[1]);
  --indent_;
  line(op.results.empty() ? "}" : fmt::format("}} : {}{}", types(op.results), remarks(op.results)));
}

// %3 = pipeline 4 0 to %n produce(%4, %5) {…} consume(%6, %7) carry(%8 = %2) {…} : f32[64,8]
void Printer::print_pipeline(const Operation& op) {
  std::string head = op.results.empty() ? "" : define_all(op.results) + " = ";
  const Region &produce = op.regions[0], &consume = op.regions[1];
  line(fmt::format("{}pipeline {} {} to {} produce({}) {{", head, op.integer, use(op.operands[0]),
                   use(op.operands[1]), define_all(produce.arguments)));
  ++indent_;
  print(produce);
  --indent_;
  std::string middle = fmt::format(
      "}} consume({})", define_all({consume.arguments.begin(), consume.arguments.begin() + 2}));
  std::vector<std::string> carried;
  for (size_t i = 2; i < consume.arguments.size(); ++i) {
    carried.push_back(fmt::format("{} = {}", define(consume.arguments[i]), use(op.operands[i])));
  }
  if (!carried.empty()) middle += fmt::format(" carry({})", fmt::join(carried, ", "));
  line(middle + " {");
  ++indent_;
  print(consume);
  --indent_;
  line(op.results.empty() ? "}" : fmt::format("}} : {}{}", types(op.results), remarks(op.results)));
}

}  // namespace

std::string print(const Kernel& kernel) { return Printer(kernel).run(); }

KernelWords words_of(const Kernel& kernel) { return Printer(kernel).all_words(); }

std::string print(const Kernel& kernel, const std::function<std::string(ValueId)>& remark) {
  return Printer(kernel, remark).run();
}

}  // namespace tenon::codegen
