// The normal form behind Dim; only the .cc files of Dim include this.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/shape.h"

namespace tenon {

enum class AtomKind : uint8_t {
  kSymbol,
  kFloorDiv,
  kCeilDiv,
  kMod,
  kMin,
  kMax,
  kBroadcast,
  kUnlessOne,
  kProduct
};

// What a polynomial treats as one variable.
struct Atom {
  AtomKind kind;
  std::string key;             // its text, by which atoms are ordered and compared
  std::string symbol;          // kSymbol only
  std::vector<Dim> arguments;  // the others
  int depth = 0;               // functions in each other; 0 for a symbol
};
using AtomPtr = std::shared_ptr<const Atom>;

struct Term {
  int64_t coefficient = 0;
  std::vector<AtomPtr> factors;  // sorted by key, repeated for powers
};

// Terms in falling graded lexicographic order, no two with the same factors, none zero.
struct Dim::Expression {
  std::vector<Term> terms;
  std::string text;
};

struct DimAlgebra {
  static std::vector<Term> terms(const Dim& dim);
  // Of its deepest atom.
  static int depth(const Dim& dim);
  // Sorts, merges and drops what cancels.
  static Dim from_terms(std::vector<Term> terms);
  static Dim from_sorted(std::vector<Term> terms);
  static Dim from_atom(AtomKind kind, std::vector<Dim> arguments, std::string symbol = {});
  // The same function applied again, with whatever folds now folding.
  static Dim apply(AtomKind kind, const std::vector<Dim>& arguments);
  // With other dims for some atoms, outer ones first, and whatever folds then folding.
  static Dim replace(const Dim& dim, const std::function<std::optional<Dim>(const Atom&)>& atom);
};

// "floordiv", …; empty for a symbol.
std::string_view function_name(AtomKind kind);
std::optional<AtomKind> parse_function_name(std::string_view name);
// As Dim::parse reads them.
std::string plain_or_quoted(std::string_view symbol);
std::string text_of(const std::vector<Term>& terms);

}  // namespace tenon
