#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/dim_division.h"
#include "base/dim_expression.h"
#include "base/error.h"
#include "base/nesting.h"

namespace tenon {
namespace {

// A product of sums with more terms than this is kept as it is: k sums of two have 2^k.
constexpr size_t kMostTerms = 64;
// Nests of functions grow as fast; no model's size needs a text as long as this.
constexpr size_t kMostText = size_t{1} << 16;
// Of a min and the like, each of which is compared with each other; of a product of symbols, which
// overflows long before.
constexpr size_t kMostOperands = 64;

[[noreturn]] void fail_too_many_steps() {
  throw UserError(
      fmt::format("a size is computed from others in more steps than can be followed: {}, {} "
                  "operands of one and {} characters are the most",
                  Nesting::limit("functions"), kMostOperands, kMostText));
}

bool factors_before(const std::vector<AtomPtr>& a, const std::vector<AtomPtr>& b) {
  if (a.size() != b.size()) return a.size() > b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (const int order = a[i]->key.compare(b[i]->key); order != 0) return order < 0;
  }
  return false;
}

bool term_before(const Term& a, const Term& b) { return factors_before(a.factors, b.factors); }

bool same_factors(const std::vector<AtomPtr>& a, const std::vector<AtomPtr>& b) {
  return !factors_before(a, b) && !factors_before(b, a);
}

bool key_before(const AtomPtr& a, const AtomPtr& b) { return a->key < b->key; }

Term multiply(const Term& a, const Term& b) {
  Term product{checked_mul(a.coefficient, b.coefficient), {}};
  if (a.factors.size() + b.factors.size() > kMostOperands) fail_too_many_steps();
  std::merge(a.factors.begin(), a.factors.end(), b.factors.begin(), b.factors.end(),
             std::back_inserter(product.factors), key_before);
  return product;
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0)
    throw UserError("a dimension is divided by zero: the model's shapes contradict each other");
  if (b == -1) return checked_mul(a, -1);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t floor_modulo(int64_t a, int64_t b) {
  if (b == -1) return 0;
  return a - checked_mul(floor_divide(a, b), b);
}

int64_t ceil_divide(int64_t a, int64_t b) {
  return checked_add(floor_divide(a, b), floor_modulo(a, b) != 0);
}

int64_t broadcast_values(int64_t a, int64_t b) {
  if (a == 1 || a == b) return b;
  if (b == 1) return a;
  throw UserError(
      fmt::format("dimensions {} and {} do not broadcast: they differ and neither is 1", a, b));
}

// Symbols stand for sizes, which are never negative.
bool never_negative(const Dim& dim);

bool never_negative(const Atom& atom) {
  switch (atom.kind) {
    case AtomKind::kSymbol:
    case AtomKind::kUnlessOne:
      return true;
    case AtomKind::kMax:
      return std::any_of(atom.arguments.begin(), atom.arguments.end(),
                         [](const Dim& d) { return never_negative(d); });
    default:
      return std::all_of(atom.arguments.begin(), atom.arguments.end(),
                         [](const Dim& d) { return never_negative(d); });
  }
}

bool never_negative(const Dim& dim) {
  const std::vector<Term> terms = DimAlgebra::terms(dim);
  return std::all_of(terms.begin(), terms.end(), [](const Term& term) {
    return term.coefficient > 0 && std::all_of(term.factors.begin(), term.factors.end(),
                                               [](const AtomPtr& a) { return never_negative(*a); });
  });
}

// Whether a <= b for all sizes; false also when nobody can tell.
bool known_at_most(const Dim& a, const Dim& b) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  if (b.is(kLargest) || a.is(std::numeric_limits<int64_t>::min())) return true;
  // Exporters write "to the end" as the largest integer; the difference would overflow.
  const auto is_huge = [](const Dim& d) {
    return d.is_constant() && (d.value() > kLargest / 2 || d.value() < -kLargest / 2);
  };
  if (is_huge(a) || is_huge(b)) return a.is_constant() && b.is_constant() && a.value() <= b.value();
  return never_negative(b - a);
}

bool is_product(const AtomPtr& atom) { return atom->kind == AtomKind::kProduct; }

bool holds_product(const std::vector<Term>& terms) {
  return std::any_of(terms.begin(), terms.end(), [](const Term& term) {
    return std::any_of(term.factors.begin(), term.factors.end(), is_product);
  });
}

// The whole of `a` over `b` when nothing is left; for one-term divisors also the part that divides.
Division split(const Dim& a, const Dim& b) {
  if (b.is(0)) return {0, a};
  if (b.is_constant()) {
    // Keep remainders small: floordiv(seq+33,16) is floordiv(seq+1,16)+2.
    std::vector<Term> quotient, rest;
    for (const Term& term : DimAlgebra::terms(a)) {
      const int64_t q = term.factors.empty() ? floor_divide(term.coefficient, b.value())
                                             : term.coefficient / b.value();
      quotient.push_back({q, term.factors});
      rest.push_back({term.coefficient - checked_mul(q, b.value()), term.factors});
    }
    return {DimAlgebra::from_terms(std::move(quotient)), DimAlgebra::from_terms(std::move(rest))};
  }
  if (a == b) return {1, 0};
  // A product of sums times a sum is a product again: it cancels no term.
  const std::vector<Term> divisor = DimAlgebra::terms(b);
  if (divisor.size() > 1 && (holds_product(DimAlgebra::terms(a)) || holds_product(divisor))) {
    return {0, a};
  }
  const Division division = divide_terms(a, b);
  if (division.rest.is(0) || divisor.size() == 1) return division;
  return {0, a};
}

// Magnitudes have no sign, so that of the smallest integer is one as well.
int64_t common_divisor(const Dim& a, const Dim& b) {
  uint64_t divisor = 0;
  for (const Dim* dim : {&a, &b}) {
    for (const Term& term : DimAlgebra::terms(*dim)) {
      const auto bits = static_cast<uint64_t>(term.coefficient);
      divisor = std::gcd(divisor, term.coefficient < 0 ? uint64_t{0} - bits : bits);
    }
  }
  // All of them are the smallest integer: half of it divides them, too.
  return static_cast<int64_t>(divisor >> 63 != 0 ? divisor / 2 : divisor);
}

Dim divided_by(const Dim& dim, int64_t divisor) {
  std::vector<Term> terms = DimAlgebra::terms(dim);
  for (Term& term : terms) term.coefficient /= divisor;
  return DimAlgebra::from_terms(std::move(terms));
}

// The one atom that `dim` is, if it is one.
const Atom* as_atom(const Dim& dim, AtomKind kind, std::vector<Term>& storage) {
  storage = DimAlgebra::terms(dim);
  const bool one =
      storage.size() == 1 && storage[0].coefficient == 1 && storage[0].factors.size() == 1;
  return one && storage[0].factors[0]->kind == kind ? storage[0].factors[0].get() : nullptr;
}

// Operands of a nest of one associative function, without repetition, in a fixed order.
std::vector<Dim> operands(AtomKind kind, const Dim& a, const Dim& b) {
  std::vector<Dim> flat;
  for (const Dim& side : {a, b}) {
    std::vector<Term> storage;
    if (const Atom* atom = as_atom(side, kind, storage)) {
      flat.insert(flat.end(), atom->arguments.begin(), atom->arguments.end());
    } else {
      flat.push_back(side);
    }
  }
  std::sort(flat.begin(), flat.end(),
            [](const Dim& x, const Dim& y) { return x.text() < y.text(); });
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  return flat;
}

// Drops each operand that `loses` against another one.
template <typename Loses>
Dim fold(AtomKind kind, std::vector<Dim> flat, Loses loses) {
  for (size_t i = 0; i < flat.size();) {
    const bool drop = std::any_of(flat.begin(), flat.end(), [&](const Dim& other) {
      return &other != &flat[i] && loses(flat[i], other);
    });
    if (drop) {
      flat.erase(flat.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return flat.size() == 1 ? flat.front() : DimAlgebra::from_atom(kind, std::move(flat));
}

// Whether broadcasting `dim` with `whole` gives `whole` wherever the two broadcast: min(512,s) is
// s, or too small for it, or 1. No other operand of the min may be 0, which is no size to stretch.
bool is_cut_of(const Dim& dim, const Dim& whole) {
  std::vector<Term> storage;
  const Atom* cut = as_atom(dim, AtomKind::kMin, storage);
  if (cut == nullptr) return false;
  bool holds_whole = false;
  for (const Dim& operand : cut->arguments) {
    if (operand == whole) {
      holds_whole = true;
    } else if (!known_at_most(1, operand)) {
      return false;
    }
  }
  return holds_whole;
}

int64_t evaluate_atom(const Atom& atom, const Dim::Lookup& lookup) {
  if (atom.kind == AtomKind::kSymbol) return lookup(atom.symbol);
  int64_t result = atom.arguments.front().evaluate(lookup);
  if (atom.kind == AtomKind::kUnlessOne) return result == 1 ? 0 : 1;
  for (size_t i = 1; i < atom.arguments.size(); ++i) {
    const int64_t next = atom.arguments[i].evaluate(lookup);
    switch (atom.kind) {
      case AtomKind::kFloorDiv:
        result = floor_divide(result, next);
        break;
      case AtomKind::kCeilDiv:
        result = ceil_divide(result, next);
        break;
      case AtomKind::kMod:
        result = floor_modulo(result, next);
        break;
      case AtomKind::kMin:
        result = std::min(result, next);
        break;
      case AtomKind::kMax:
        result = std::max(result, next);
        break;
      case AtomKind::kBroadcast:
        result = broadcast_values(result, next);
        break;
      case AtomKind::kProduct:
        result = checked_mul(result, next);
        break;
      case AtomKind::kSymbol:
      case AtomKind::kUnlessOne:
        break;
    }
  }
  return result;
}

std::vector<Term> expand(const std::vector<Term>& a, const std::vector<Term>& b) {
  std::vector<Term> product;
  for (const Term& left : a) {
    for (const Term& right : b) product.push_back(multiply(left, right));
  }
  return product;
}

// What a product multiplies: one term, and the sums that it is not multiplied out with.
struct Factors {
  Term term{1, {}};
  std::vector<Dim> sums;

  void add(const Dim& dim) {
    const std::vector<Term> terms = DimAlgebra::terms(dim);
    if (terms.size() != 1) return sums.push_back(dim);
    Term plain{terms.front().coefficient, {}};
    for (const AtomPtr& atom : terms.front().factors) {
      if (is_product(atom)) {
        sums.insert(sums.end(), atom->arguments.begin(), atom->arguments.end());
      } else {
        plain.factors.push_back(atom);
      }
    }
    term = multiply(term, plain);
  }

  // Sums of few terms in all; those that hold a product would bring its text into every term.
  bool can_expand() const {
    if (sums.size() < 2) return true;
    size_t count = 1;
    for (const Dim& sum : sums) {
      const std::vector<Term> terms = DimAlgebra::terms(sum);
      count *= terms.size();
      if (count > kMostTerms || holds_product(terms)) return false;
    }
    return true;
  }
};

// Sums are multiplied out, so that equal sizes compare equal, where that has an end.
Dim multiply_all(const std::vector<Dim>& dims) {
  if (std::any_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim.is(0); })) return 0;
  Factors factors;
  for (const Dim& dim : dims) factors.add(dim);
  std::vector<Term> terms{factors.term};
  if (factors.can_expand()) {
    for (const Dim& sum : factors.sums) terms = expand(terms, DimAlgebra::terms(sum));
  } else {
    std::sort(factors.sums.begin(), factors.sums.end(),
              [](const Dim& x, const Dim& y) { return x.text() < y.text(); });
    const Dim atom = DimAlgebra::from_atom(AtomKind::kProduct, std::move(factors.sums));
    terms = expand(terms, DimAlgebra::terms(atom));
  }
  return DimAlgebra::from_terms(std::move(terms));
}

}  // namespace

std::vector<Term> DimAlgebra::terms(const Dim& dim) {
  if (dim.expression_) return dim.expression_->terms;
  if (dim.constant_ == 0) return {};
  return {Term{dim.constant_, {}}};
}

int DimAlgebra::depth(const Dim& dim) {
  int deepest = 0;
  if (!dim.expression_) return deepest;
  for (const Term& term : dim.expression_->terms) {
    for (const AtomPtr& atom : term.factors) deepest = std::max(deepest, atom->depth);
  }
  return deepest;
}

Dim DimAlgebra::from_terms(std::vector<Term> terms) {
  std::sort(terms.begin(), terms.end(), term_before);
  return from_sorted(std::move(terms));
}

Dim DimAlgebra::from_sorted(std::vector<Term> terms) {
  std::vector<Term> merged;
  for (Term& term : terms) {
    if (!merged.empty() && same_factors(merged.back().factors, term.factors)) {
      merged.back().coefficient = checked_add(merged.back().coefficient, term.coefficient);
    } else {
      merged.push_back(std::move(term));
    }
  }
  std::erase_if(merged, [](const Term& term) { return term.coefficient == 0; });
  if (merged.empty()) return 0;
  if (merged.size() == 1 && merged[0].factors.empty()) return merged[0].coefficient;
  auto expression = std::make_shared<Dim::Expression>();
  expression->text = text_of(merged);
  if (expression->text.size() > kMostText) fail_too_many_steps();
  expression->terms = std::move(merged);
  return Dim(std::move(expression));
}

Dim DimAlgebra::from_atom(AtomKind kind, std::vector<Dim> arguments, std::string symbol) {
  auto atom = std::make_shared<Atom>();
  atom->kind = kind;
  if (kind == AtomKind::kSymbol) {
    atom->key = plain_or_quoted(symbol);
  } else {
    if (arguments.size() > kMostOperands) fail_too_many_steps();
    std::string list;
    for (const Dim& argument : arguments) list += (list.empty() ? "" : ",") + argument.text();
    atom->key = fmt::format("{}({})", function_name(kind), list);
    for (const Dim& argument : arguments) atom->depth = std::max(atom->depth, depth(argument));
    if (++atom->depth > Nesting::kDeepest) fail_too_many_steps();
  }
  atom->symbol = std::move(symbol);
  atom->arguments = std::move(arguments);
  return from_terms({Term{1, {std::move(atom)}}});
}

Dim DimAlgebra::apply(AtomKind kind, const std::vector<Dim>& arguments) {
  if (arguments.size() > kMostOperands) fail_too_many_steps();
  Dim result = arguments.at(0);
  if (kind == AtomKind::kUnlessOne) return stride_unless_one(result, 1);
  if (kind == AtomKind::kProduct) return multiply_all(arguments);
  for (size_t i = 1; i < arguments.size(); ++i) {
    switch (kind) {
      case AtomKind::kFloorDiv:
        result = floor_div(result, arguments[i]);
        break;
      case AtomKind::kCeilDiv:
        result = ceil_div(result, arguments[i]);
        break;
      case AtomKind::kMod:
        result = mod(result, arguments[i]);
        break;
      case AtomKind::kMin:
        result = min(result, arguments[i]);
        break;
      case AtomKind::kMax:
        result = max(result, arguments[i]);
        break;
      case AtomKind::kBroadcast:
        result = broadcast(result, arguments[i]);
        break;
      case AtomKind::kSymbol:
      case AtomKind::kUnlessOne:
      case AtomKind::kProduct:
        throw InternalError("a symbol is no function");
    }
  }
  return result;
}

Dim::Dim(int64_t value) : constant_(value) {}
Dim::Dim(std::shared_ptr<const Expression> expression) : expression_(std::move(expression)) {}

Dim Dim::symbol(std::string name) {
  return DimAlgebra::from_atom(AtomKind::kSymbol, {}, std::move(name));
}

bool Dim::is_constant() const { return expression_ == nullptr; }

int64_t Dim::value() const {
  if (expression_) throw InternalError("expected a constant dimension, got " + expression_->text);
  return constant_;
}

std::string Dim::text() const {
  return expression_ ? expression_->text : std::to_string(constant_);
}

int64_t Dim::evaluate(const Lookup& lookup) const {
  if (!expression_) return constant_;
  int64_t sum = 0;
  for (const Term& term : expression_->terms) {
    int64_t product = term.coefficient;
    for (const AtomPtr& atom : term.factors)
      product = checked_mul(product, evaluate_atom(*atom, lookup));
    sum = checked_add(sum, product);
  }
  return sum;
}

void Dim::collect_symbols(std::vector<std::string>& into) const {
  if (!expression_) return;
  for (const Term& term : expression_->terms) {
    for (const AtomPtr& atom : term.factors) {
      for (const Dim& argument : atom->arguments) argument.collect_symbols(into);
      const bool seen = std::find(into.begin(), into.end(), atom->symbol) != into.end();
      if (atom->kind == AtomKind::kSymbol && !seen) into.push_back(atom->symbol);
    }
  }
}

Dim DimAlgebra::replace(const Dim& dim,
                        const std::function<std::optional<Dim>(const Atom&)>& atom) {
  Dim sum = 0;
  for (const Term& term : terms(dim)) {
    Dim product = term.coefficient;
    for (const AtomPtr& factor : term.factors) {
      if (const std::optional<Dim> other = atom(*factor)) {
        product = product * *other;
      } else if (factor->kind == AtomKind::kSymbol) {
        product = product * Dim::symbol(factor->symbol);
      } else {
        std::vector<Dim> arguments;
        for (const Dim& argument : factor->arguments) arguments.push_back(replace(argument, atom));
        product = product * apply(factor->kind, arguments);
      }
    }
    sum = sum + product;
  }
  return sum;
}

Dim Dim::substitute(const Replacement& of_symbol) const {
  return DimAlgebra::replace(*this, [&](const Atom& atom) {
    return atom.kind == AtomKind::kSymbol ? of_symbol(atom.symbol) : std::nullopt;
  });
}

Dim Dim::substitute_functions(const Replacement& of_function) const {
  return DimAlgebra::replace(*this, [&](const Atom& atom) {
    return atom.kind == AtomKind::kSymbol ? std::nullopt : of_function(atom.key);
  });
}

Dim operator+(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) return checked_add(a.constant_, b.constant_);
  const std::vector<Term> left = DimAlgebra::terms(a), right = DimAlgebra::terms(b);
  std::vector<Term> terms;
  terms.reserve(left.size() + right.size());
  std::merge(left.begin(), left.end(), right.begin(), right.end(), std::back_inserter(terms),
             term_before);
  return DimAlgebra::from_sorted(std::move(terms));
}

Dim operator-(const Dim& a, const Dim& b) { return a + Dim(-1) * b; }

Dim operator*(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) return checked_mul(a.constant_, b.constant_);
  return multiply_all({a, b});
}

Dim floor_div(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) return floor_divide(a.constant_, b.constant_);
  const Division division = split(a, b);
  if (division.rest.is(0)) return division.quotient;
  const Dim& rest = division.rest;
  if (const int64_t shared = common_divisor(rest, b); shared > 1) {
    return division.quotient + floor_div(divided_by(rest, shared), divided_by(b, shared));
  }
  if (b.is_constant() && rest.is_constant()) {
    return division.quotient + floor_divide(rest.value(), b.value());
  }
  if (b.is_constant() && b.value() > 0) {
    std::vector<Term> storage;
    const Atom* inner = as_atom(rest, AtomKind::kFloorDiv, storage);
    if (inner && inner->arguments[1].is_constant() && inner->arguments[1].value() > 0) {
      return division.quotient + floor_div(inner->arguments[0], inner->arguments[1] * b);
    }
  }
  return division.quotient + DimAlgebra::from_atom(AtomKind::kFloorDiv, {rest, b});
}

Dim ceil_div(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) return ceil_divide(a.constant_, b.constant_);
  // One spelling for what models write as (n + 15) / 16, where no size makes the sum overflow.
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  if (b.is_constant() && b.value() > 0 && b.value() <= kLargest) return floor_div(a + (b - 1), b);
  const Division division = split(a, b);
  if (division.rest.is(0)) return division.quotient;
  return division.quotient + DimAlgebra::from_atom(AtomKind::kCeilDiv, {division.rest, b});
}

Dim mod(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) return floor_modulo(a.constant_, b.constant_);
  const Division division = split(a, b);
  if (division.rest.is_constant() && b.is_constant()) {
    return floor_modulo(division.rest.value(), b.value());
  }
  if (division.rest.is(0)) return 0;
  return DimAlgebra::from_atom(AtomKind::kMod, {division.rest, b});
}

Dim min(const Dim& a, const Dim& b) {
  return fold(AtomKind::kMin, operands(AtomKind::kMin, a, b),
              [](const Dim& dim, const Dim& other) { return known_at_most(other, dim); });
}

Dim max(const Dim& a, const Dim& b) {
  return fold(AtomKind::kMax, operands(AtomKind::kMax, a, b),
              [](const Dim& dim, const Dim& other) { return known_at_most(dim, other); });
}

Dim broadcast(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) return broadcast_values(a.constant_, b.constant_);
  const std::vector<Dim> flat = operands(AtomKind::kBroadcast, a, b);
  // A fixed size other than 1 decides, whatever the symbols turn out to be.
  for (const Dim& dim : flat) {
    if (dim.is_constant() && !dim.is(1)) return dim;
  }
  return fold(AtomKind::kBroadcast, flat,
              [](const Dim& dim, const Dim& other) { return dim.is(1) || is_cut_of(dim, other); });
}

Dim stride_unless_one(const Dim& dim, const Dim& stride) {
  if (dim.is_constant()) return dim.is(1) ? Dim(0) : stride;
  return stride * DimAlgebra::from_atom(AtomKind::kUnlessOne, {dim});
}

bool operator==(const Dim& a, const Dim& b) {
  if (a.is_constant() || b.is_constant()) {
    return a.is_constant() && b.is_constant() && a.constant_ == b.constant_;
  }
  return a.expression_ == b.expression_ || a.expression_->text == b.expression_->text;
}

}  // namespace tenon
