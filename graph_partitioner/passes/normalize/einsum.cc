// Einsum over one or two tensors, as sums, transposes and one MatMul:
//
//   bhid,bhjd->bhij     a [b,h | i | d]  ·  b [b,h | d | j]  ──  y [b,h | i | j]
//
// Labels are sorted into batch (in both and in the result), rows (a's own), columns (b's own) and
// what is summed. A label that is 1 in one term and not in the other is stretched there first.
// Ellipses and labels repeated in one term are left alone.
#include <algorithm>
#include <cctype>
#include <set>
#include <string>

#include "graph_partitioner/passes/normalize/rules.h"

namespace tenon::normalization {
namespace {

using ir::ValueId;

struct Equation {
  std::vector<std::string> terms;
  std::string result;
};

bool has_repeats(const std::string& labels) {
  return std::set<char>(labels.begin(), labels.end()).size() != labels.size();
}

// Without "->" the result is every label that stands once, in order of the alphabet.
std::string implied_result(const std::string& terms) {
  std::string result;
  for (const char label : std::set<char>(terms.begin(), terms.end())) {
    if (label != ',' && std::count(terms.begin(), terms.end(), label) == 1) result += label;
  }
  return result;
}

std::optional<Equation> parse_equation(std::string text) {
  text.erase(
      std::remove_if(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c); }),
      text.end());
  const size_t arrow = text.find("->");
  const std::string left = text.substr(0, arrow);
  Equation equation;
  equation.result = arrow == std::string::npos ? implied_result(left) : text.substr(arrow + 2);
  equation.terms.emplace_back();
  for (const char c : left) {
    if (c == ',') {
      equation.terms.emplace_back();
    } else {
      equation.terms.back() += c;
    }
  }
  std::string labels = equation.result;
  for (const std::string& term : equation.terms) {
    if (has_repeats(term)) return std::nullopt;
    labels += term;
  }
  const bool plain =
      std::all_of(labels.begin(), labels.end(), [](unsigned char c) { return std::isalpha(c); });
  if (!plain || has_repeats(equation.result)) return std::nullopt;
  return equation;
}

bool contains(const std::string& labels, char label) {
  return labels.find(label) != std::string::npos;
}

// The labels of `from` that pass `keep`, in order.
template <typename Keep>
std::string select(const std::string& from, Keep keep) {
  std::string result;
  std::copy_if(from.begin(), from.end(), std::back_inserter(result), keep);
  return result;
}

struct Term {
  ValueId value;
  std::string labels;
};

Dim size_of(Rewrite& r, const Term& term, const std::string& labels) {
  Dim size = 1;
  for (const char label : labels) {
    size = size * (*r.graph().value(term.value).shape)[term.labels.find(label)];
  }
  return size;
}

// `term` with the size that each label has where both terms have it.
Term stretched(Rewrite& r, Term term, const Shape& shape) {
  if (*r.graph().value(term.value).shape != shape) term.value = r.emit.expand(term.value, shape);
  return term;
}

// False where two fixed sizes of one label clash.
bool stretch(Rewrite& r, Term& a, Term& b) {
  Shape left = *r.graph().value(a.value).shape, right = *r.graph().value(b.value).shape;
  for (size_t i = 0; i < a.labels.size(); ++i) {
    const size_t j = b.labels.find(a.labels[i]);
    if (j == std::string::npos) continue;
    const auto wide = broadcast_shapes({left[i]}, {right[j]});
    if (!wide) return false;
    left[i] = right[j] = wide->front();
  }
  a = stretched(r, a, left);
  b = stretched(r, b, right);
  return true;
}

// Labels that nobody else has are summed away first.
Term summed(Rewrite& r, Term term, const std::string& wanted) {
  std::vector<int64_t> axes;
  Shape kept;
  const Shape shape = *r.graph().value(term.value).shape;
  for (size_t i = 0; i < term.labels.size(); ++i) {
    if (contains(wanted, term.labels[i])) {
      kept.push_back(shape[i]);
    } else {
      axes.push_back(static_cast<int64_t>(i));
    }
  }
  if (axes.empty()) return term;
  term.value = r.emit.reshape(r.emit.reduce("ReduceSum", term.value, axes), kept);
  term.labels = select(term.labels, [&](char label) { return contains(wanted, label); });
  return term;
}

ValueId transposed(Rewrite& r, const Term& term, const std::string& order) {
  std::vector<int64_t> perm;
  for (const char label : order) perm.push_back(static_cast<int64_t>(term.labels.find(label)));
  if (std::is_sorted(perm.begin(), perm.end())) return term.value;
  return r.emit.transpose(term.value, std::move(perm));
}

// [batch..., first, second] with each group as one dim.
ValueId as_matrix(Rewrite& r, const Term& term, const std::string& batch, const std::string& first,
                  const std::string& second) {
  Shape shape;
  for (const char label : batch) shape.push_back(size_of(r, term, std::string(1, label)));
  shape.push_back(size_of(r, term, first));
  shape.push_back(size_of(r, term, second));
  return r.emit.reshape(transposed(r, term, batch + first + second), std::move(shape));
}

Term product(Rewrite& r, const Term& a, const Term& b, const std::string& result) {
  const std::string batch = select(
      result, [&](char label) { return contains(a.labels, label) && contains(b.labels, label); });
  const std::string rows = select(a.labels, [&](char label) { return !contains(b.labels, label); });
  const std::string columns =
      select(b.labels, [&](char label) { return !contains(a.labels, label); });
  const std::string inner = select(
      a.labels, [&](char label) { return contains(b.labels, label) && !contains(result, label); });
  const ValueId left = as_matrix(r, a, batch, rows, inner);
  const ValueId right = as_matrix(r, b, batch, inner, columns);
  Shape matrix = *r.graph().value(left).shape, full;
  matrix.back() = r.graph().value(right).shape->back();
  for (const char label : batch) full.push_back(size_of(r, a, std::string(1, label)));
  for (const char label : rows) full.push_back(size_of(r, a, std::string(1, label)));
  for (const char label : columns) full.push_back(size_of(r, b, std::string(1, label)));
  ir::Node node;
  node.op = "MatMul";
  node.inputs = {left, right};
  const ValueId dot = r.emit.emit(std::move(node), r.dtype(left), std::move(matrix));
  return {r.emit.reshape(dot, std::move(full)), batch + rows + columns};
}

bool einsum(Rewrite& r) {
  const auto equation = parse_equation(r.node().text("equation", ""));
  const size_t count = r.node().inputs.size();
  if (!equation || equation->terms.size() != count || count == 0 || count > 2) return false;
  std::vector<Term> terms;
  for (size_t i = 0; i < count; ++i) {
    const auto shape = r.shape(r.input(i));
    if (!shape || shape->size() != equation->terms[i].size()) return false;
    terms.push_back({r.input(i), equation->terms[i]});
  }
  for (const char label : equation->result) {
    if (!contains(terms.front().labels + terms.back().labels, label)) return false;
  }
  if (count == 2 && !stretch(r, terms[0], terms[1])) return false;
  for (size_t i = 0; i < count; ++i) {
    const std::string other = count == 2 ? terms[1 - i].labels : "";
    terms[i] = summed(r, terms[i], equation->result + other);
  }
  const Term whole = count == 2 ? product(r, terms[0], terms[1], equation->result) : terms[0];
  const ValueId result = transposed(r, whole, equation->result);
  return result != r.input(0) && r.replace(0, result);
}

constexpr NamedRewrite kRules[] = {{"Einsum", einsum}};

}  // namespace

std::span<const NamedRewrite> einsum_rules() { return kRules; }

}  // namespace tenon::normalization
