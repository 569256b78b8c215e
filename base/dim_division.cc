#include "base/dim_division.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <vector>

#include "base/dim_expression.h"

namespace tenon {
namespace {

bool key_before(const AtomPtr& a, const AtomPtr& b) { return a->key < b->key; }

// a / b where it is a term again.
std::optional<Term> divide(const Term& a, const Term& b) {
  if (a.coefficient == std::numeric_limits<int64_t>::min() && b.coefficient == -1) {
    return std::nullopt;
  }
  if (a.coefficient % b.coefficient != 0) return std::nullopt;
  if (!std::includes(a.factors.begin(), a.factors.end(), b.factors.begin(), b.factors.end(),
                     key_before)) {
    return std::nullopt;
  }
  Term quotient{a.coefficient / b.coefficient, {}};
  std::set_difference(a.factors.begin(), a.factors.end(), b.factors.begin(), b.factors.end(),
                      std::back_inserter(quotient.factors), key_before);
  return quotient;
}

}  // namespace

Division divide_terms(const Dim& a, const Dim& b) {
  const std::vector<Term> divisor = DimAlgebra::terms(b);
  std::vector<Term> quotient, rest;
  Dim left = a;
  // Only a leading term that divides is cancelled; with a monomial divisor that is every term.
  while (!left.is(0)) {
    const std::vector<Term> terms = DimAlgebra::terms(left);
    if (const std::optional<Term> step = divide(terms.front(), divisor.front())) {
      quotient.push_back(*step);
      left = left - DimAlgebra::from_terms({*step}) * b;
    } else {
      rest.push_back(terms.front());
      left = left - DimAlgebra::from_terms({terms.front()});
    }
  }
  return {DimAlgebra::from_terms(std::move(quotient)), DimAlgebra::from_terms(std::move(rest))};
}

}  // namespace tenon
