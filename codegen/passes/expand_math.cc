#include "codegen/passes/expand_math.h"

#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "codegen/passes/math_f32.h"
#include "codegen/passes/math_f64.h"
#include "codegen/passes/small_floats.h"

namespace tenon::codegen {

namespace {

struct UnaryExpansion {
  Fn fn;
  Expr (*expand)(Expr);
};

constexpr UnaryExpansion kUnaryF32[] = {
    {Fn::kExp, exp_f32},     {Fn::kExp2, exp2_f32},   {Fn::kLog, log_f32},
    {Fn::kLog2, log2_f32},   {Fn::kSin, sin_f32},     {Fn::kCos, cos_f32},
    {Fn::kTan, tan_f32},     {Fn::kTanh, tanh_f32},   {Fn::kErf, erf_f32},
    {Fn::kAsin, asin_f32},   {Fn::kAcos, acos_f32},   {Fn::kAtan, atan_f32},
    {Fn::kSinh, sinh_f32},   {Fn::kCosh, cosh_f32},   {Fn::kAsinh, asinh_f32},
    {Fn::kAcosh, acosh_f32}, {Fn::kAtanh, atanh_f32},
};

constexpr UnaryExpansion kUnaryF64[] = {
    {Fn::kExp, exp_f64},     {Fn::kExp2, exp2_f64},   {Fn::kLog, log_f64},
    {Fn::kLog2, log2_f64},   {Fn::kSin, sin_f64},     {Fn::kCos, cos_f64},
    {Fn::kTan, tan_f64},     {Fn::kTanh, tanh_f64},   {Fn::kErf, erf_f64},
    {Fn::kAsin, asin_f64},   {Fn::kAcos, acos_f64},   {Fn::kAtan, atan_f64},
    {Fn::kSinh, sinh_f64},   {Fn::kCosh, cosh_f64},   {Fn::kAsinh, asinh_f64},
    {Fn::kAcosh, acosh_f64}, {Fn::kAtanh, atanh_f64},
};

Expr sign(Expr x) {
  Expr positive = select(x > 0, 1, x);  // 0 and NaN stay
  return is_signed(x.dtype()) ? select(x < 0, -1, positive) : positive;
}

// Remainder with the sign of the divisor.
Expr modulo(Expr a, Expr b) {
  Expr r = a.apply(Fn::kRem, b);
  if (is_floating(a.dtype())) {
    Expr negative = b < 0, zero = select(negative, -0.0, b.like(0.0));
    Expr whole = r == 0, r_negative = r < 0, b_negative = b < 0;
    return select(whole, zero, select({r_negative ^ b_negative, r + b, r}));
  }
  if (!is_signed(a.dtype())) return r;
  Expr has_rest = r != 0, signs_differ = (r ^ b) < 0;
  return select({has_rest & signs_differ, r + b, r});
}

// Squaring, one bit of the exponent after the other; wraps like any integer product.
Expr integer_power(Expr base, Expr exponent) {
  int width = bit_width(base.dtype());
  Expr result = base.like(1), square = base;
  for (int bit = 0; bit < width; ++bit) {
    result = select({((exponent >> bit) & 1) != 0, result * square, result});
    square = square * square;
  }
  if (!is_signed(base.dtype())) return result;
  // 1 / base^n: a fraction, unless the base is 1 or -1.
  Expr minus_one = base == -1, odd = (exponent & 1) != 0, negative = minus_one & odd;
  Expr inverse = select(negative, -1, base.like(1));
  Expr is_one = base == 1, is_minus_one = base == -1, has_inverse = is_one | is_minus_one;
  return select({exponent < 0, select(has_inverse, inverse, base.like(0)), result});
}

bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// Copies a kernel, replacing operations on the way.
class Rewriter {
 public:
  Rewriter(const Kernel& kernel, const MathInstructions& instructions)
      : kernel_(kernel),
        instructions_(instructions),
        b_(kernel.name),
        renamed_(kernel.types.size(), kNone),
        other_uses_(kernel.types.size()),
        uses_(kernel.types.size()) {
    survey(kernel.body);
    if (instructions.exp2) sums_.clear();  // a GPU: not measured there
    std::erase_if(sums_, [&](const auto& sum) { return uses_[sum.second] != 1; });
    for (const auto& [sum, erf] : sums_) summed_erfs_.insert(erf);
  }

  Kernel run() {
    for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
      const Parameter& parameter = kernel_.parameters[i];
      renamed_[i] = parameter.type.kind == Type::Kind::kBuffer
                        ? b_.buffer(parameter.name, parameter.type.dtype, parameter.constant)
                        : b_.index_parameter(parameter.name);
    }
    visit(kernel_.body);
    Kernel out = b_.finish();
    out.pdl = kernel_.pdl;
    out.ctas_per_sm = kernel_.ctas_per_sm;
    for (size_t i = 0; i < out.parameters.size(); ++i) {
      out.parameters[i].own = kernel_.parameters[i].own;
      out.parameters[i].aligned = kernel_.parameters[i].aligned;
    }
    return out;
  }

 private:
  // Which values are used by anything but a cast to f16, how often, and which are 1 + erf(x).
  void survey(const Region& region) {
    for (const Operation& op : region.operations) {
      bool narrows = op.op == Op::kCast && kernel_.types[op.results[0]].dtype == DType::kF16;
      for (ValueId id : op.operands) {
        if (id == kNone) continue;
        if (!narrows) other_uses_[id] = true;
        ++uses_[id];
      }
      note_one_plus_erf(op);
      for (const Region& inner : op.regions) survey(inner);
    }
  }

  void note_one_plus_erf(const Operation& op) {
    if (op.results.size() != 1 || kernel_.types[op.results[0]].dtype != DType::kF32) return;
    if (op.op == Op::kConstant && op.integers.empty() && op.number == 1)
      ones_.insert(op.results[0]);
    if (op.op == Op::kUnary && op.fn == Fn::kErf) erfs_.insert(op.results[0]);
    if (op.op != Op::kBinary || op.fn != Fn::kAdd) return;
    for (int i : {0, 1}) {
      ValueId erf = op.operands[i], one = op.operands[1 - i];
      if (erfs_.contains(erf) && ones_.contains(one)) sums_[op.results[0]] = erf;
    }
  }

  bool has_instruction(const Operation& op, DType dtype) const {
    if (op.op == Op::kUnary && op.fn == Fn::kDequantizeF8E4M3FN) {
      return instructions_.f8e4m3fn_to_f16 && !other_uses_[op.results[0]];
    }
    if (op.op != Op::kBinary || !(op.fn == Fn::kAdd || op.fn == Fn::kSub || op.fn == Fn::kMul)) {
      return false;
    }
    return dtype == DType::kF16 ? instructions_.f16 : dtype == DType::kBF16 && instructions_.bf16;
  }

  Expr expr(ValueId id) { return {b_, id}; }
  ValueId renamed(ValueId id) const { return id == kNone ? kNone : renamed_[id]; }

  // What the region yields.
  std::vector<ValueId> visit(const Region& region) {
    for (const Operation& operation : region.operations) {
      if (operation.op == Op::kYield) return map(operation.operands);
      visit(operation);
    }
    return {};
  }

  std::vector<ValueId> map(const std::vector<ValueId>& ids) const {
    std::vector<ValueId> out;
    for (ValueId id : ids) out.push_back(renamed(id));
    return out;
  }

  void visit(const Operation& op);
  void visit_loop(const Operation& op);
  void visit_branch(const Operation& op);
  void visit_pipeline(const Operation& op);
  ValueId elementwise(const Operation& op, std::vector<ValueId> operands);
  std::span<const UnaryExpansion> expansions(DType dtype) const;
  ValueId unary(const Operation& op, ValueId x);
  ValueId binary(const Operation& op, ValueId x, ValueId y);
  ValueId in_f32(const Operation& op, std::vector<ValueId> operands);
  ValueId copy(Operation op, std::vector<ValueId> operands, DType dtype);

  const Kernel& kernel_;
  MathInstructions instructions_;
  Builder b_;
  std::vector<ValueId> renamed_;
  std::vector<bool> other_uses_;
  std::vector<int> uses_;
  std::set<ValueId> ones_, erfs_;
  std::map<ValueId, ValueId> sums_;  // 1 + erf(x), with the erf that nothing else uses
  std::set<ValueId> summed_erfs_;    // stand for their x until the sum comes
};

void Rewriter::visit(const Operation& op) {
  if (!op.results.empty() && summed_erfs_.contains(op.results[0])) {
    renamed_[op.results[0]] = renamed(op.operands[0]);
    return;
  }
  if (auto sum = op.results.empty() ? sums_.end() : sums_.find(op.results[0]); sum != sums_.end()) {
    renamed_[op.results[0]] = one_plus_erf_f32(expr(renamed(sum->second))).id();
    return;
  }
  switch (op.op) {
    case Op::kTask:
      renamed_[op.results[0]] = b_.task();
      return;
    case Op::kIndexConstant:
      renamed_[op.results[0]] = b_.index(op.integer);
      return;
    case Op::kFor:
      return visit_loop(op);
    case Op::kIf:
      return visit_branch(op);
    case Op::kPipeline:
      return visit_pipeline(op);
    case Op::kUnary:
    case Op::kBinary:
    case Op::kTernary:
    case Op::kCompare:
    case Op::kReduce:
      renamed_[op.results[0]] = elementwise(op, map(op.operands));
      return;
    default:
      break;
  }
  Operation same = op;
  same.operands = map(op.operands);
  same.results.clear();
  std::vector<Type> types;
  for (ValueId id : op.results) types.push_back(kernel_.types[id]);
  std::vector<ValueId> results = b_.append(std::move(same), std::move(types));
  for (size_t i = 0; i < results.size(); ++i) renamed_[op.results[i]] = results[i];
}

void Rewriter::visit_loop(const Operation& op) {
  const Region& body = op.regions[0];
  std::vector<ValueId> operands = map(op.operands);
  std::vector<ValueId> results =
      b_.loop(operands[0], operands[1], operands[2], {operands.begin() + 3, operands.end()},
              [&](ValueId counter, std::span<const ValueId> carried) {
                renamed_[body.arguments[0]] = counter;
                for (size_t i = 0; i < carried.size(); ++i)
                  renamed_[body.arguments[1 + i]] = carried[i];
                return visit(body);
              });
  for (size_t i = 0; i < results.size(); ++i) renamed_[op.results[i]] = results[i];
}

void Rewriter::visit_pipeline(const Operation& op) {
  const Region &produce = op.regions[0], &consume = op.regions[1];
  std::vector<ValueId> operands = map(op.operands);
  std::vector<ValueId> results = b_.pipeline(
      static_cast<int>(op.integer), operands[0], operands[1],
      {operands.begin() + 2, operands.end()},
      [&](ValueId counter, ValueId stage) {
        renamed_[produce.arguments[0]] = counter;
        renamed_[produce.arguments[1]] = stage;
        visit(produce);
      },
      [&](ValueId counter, ValueId stage, std::span<const ValueId> carried) {
        renamed_[consume.arguments[0]] = counter;
        renamed_[consume.arguments[1]] = stage;
        for (size_t i = 0; i < carried.size(); ++i) {
          renamed_[consume.arguments[2 + i]] = carried[i];
        }
        return visit(consume);
      });
  for (size_t i = 0; i < results.size(); ++i) renamed_[op.results[i]] = results[i];
}

void Rewriter::visit_branch(const Operation& op) {
  std::vector<ValueId> results = b_.branch(
      renamed(op.operands[0]), [&] { return visit(op.regions[0]); },
      [&] { return visit(op.regions[1]); });
  for (size_t i = 0; i < results.size(); ++i) renamed_[op.results[i]] = results[i];
}

ValueId Rewriter::elementwise(const Operation& op, std::vector<ValueId> operands) {
  DType dtype = b_.type(operands[0]).dtype;
  if (has_instruction(op, dtype)) return copy(op, std::move(operands), dtype);
  if (is_half(dtype)) return in_f32(op, std::move(operands));
  if (op.op == Op::kUnary) return unary(op, operands[0]);
  if (op.op == Op::kBinary) return binary(op, operands[0], operands[1]);
  return copy(op, std::move(operands), dtype);
}

// The operation on other operands, whose type is `dtype`.
ValueId Rewriter::copy(Operation op, std::vector<ValueId> operands, DType dtype) {
  Type result = kernel_.types[op.results[0]];
  if (is_half(result.dtype)) result.dtype = dtype;
  op.operands = std::move(operands);
  op.results.clear();
  return b_.append(std::move(op), {std::move(result)})[0];
}

ValueId Rewriter::in_f32(const Operation& op, std::vector<ValueId> operands) {
  for (ValueId& operand : operands) operand = b_.cast(operand, DType::kF32);
  ValueId result = elementwise(op, std::move(operands));
  DType wanted = kernel_.types[op.results[0]].dtype;
  return is_half(wanted) ? b_.cast(result, wanted) : result;
}

std::span<const UnaryExpansion> Rewriter::expansions(DType dtype) const {
  if (dtype == DType::kF32) return kUnaryF32;
  if (dtype == DType::kF64 && !instructions_.libm) return kUnaryF64;
  return {};
}

ValueId Rewriter::unary(const Operation& op, ValueId id) {
  Expr x = expr(id);
  switch (op.fn) {
    case Fn::kRsqrt:
      return reciprocal(sqrt(x)).id();
    case Fn::kSign:
      return sign(x).id();
    default:
      break;
  }
  if (op.fn >= Fn::kDequantizeF8E4M3FN && op.fn <= Fn::kDequantizeF4E2M1) {
    return dequantize_small_float(op.fn, x).id();
  }
  if (op.fn >= Fn::kQuantizeF8E4M3FN && op.fn <= Fn::kQuantizeF4E2M1) {
    return quantize_small_float(op.fn, x, encode_rule(op.integer)).id();
  }
  if (instructions_.exp2 && x.dtype() == DType::kF32) {
    if (op.fn == Fn::kExp) return exp_by_exp2(x).id();
    if (op.fn == Fn::kExp2) return copy(op, {id}, x.dtype());
  }
  for (const UnaryExpansion& row : expansions(x.dtype())) {
    if (row.fn == op.fn) return row.expand(x).id();
  }
  return copy(op, {id}, x.dtype());
}

ValueId Rewriter::binary(const Operation& op, ValueId a, ValueId b) {
  Expr x = expr(a), y = expr(b);
  bool f32 = x.dtype() == DType::kF32, f64 = x.dtype() == DType::kF64 && !instructions_.libm;
  if (op.fn == Fn::kMod) return modulo(x, y).id();
  if (op.fn == Fn::kPow && is_integer(x.dtype())) return integer_power(x, y).id();
  if (op.fn == Fn::kPow && f32) return pow_f32(x, y).id();
  if (op.fn == Fn::kAtan2 && f32) return atan2_f32(x, y).id();
  if (op.fn == Fn::kPow && f64) return pow_f64(x, y).id();
  if (op.fn == Fn::kAtan2 && f64) return atan2_f64(x, y).id();
  return copy(op, {a, b}, x.dtype());
}

}  // namespace

Kernel expand_math(const Kernel& kernel, const MathInstructions& instructions) {
  return Rewriter(kernel, instructions).run();
}

}  // namespace tenon::codegen
