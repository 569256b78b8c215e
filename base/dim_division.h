// Division of sizes as polynomials.
#pragma once

#include "base/shape.h"

namespace tenon {

struct Division {
  Dim quotient, rest;
};

// a = quotient * b + rest, with as much in the quotient as divides term by term. `b` is not 0.
Division divide_terms(const Dim& a, const Dim& b);

}  // namespace tenon
