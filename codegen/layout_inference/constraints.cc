#include "codegen/layout_inference/constraints.h"

#include <fmt/format.h>

#include "codegen/tile/verify.h"

namespace tenon::codegen {

ConstraintPrinter::ConstraintPrinter(const System& system)
    : system_(system), words_(words_of(system.kernel)) {}

// "%7 is one of bits[…]: %7 = dot %5, %6 : f32[64,32]"
std::string ConstraintPrinter::operator()(const Constraint& constraint) const {
  auto name = [&](ValueId id) { return words_.names[static_cast<size_t>(id)]; };
  std::string a = name(constraint.a), b = constraint.b == kNone ? "" : name(constraint.b), what;
  switch (constraint.kind) {
    case Constraint::Kind::kEquals:
      what = fmt::format("{} lies as {}", a, b);
      break;
    case Constraint::Kind::kOneOf: {
      what = a + " is";
      for (const Layout& layout : constraint.layouts) {
        what += fmt::format("{} {}", &layout == &constraint.layouts[0] ? "" : " or", layout.text());
      }
      break;
    }
    case Constraint::Kind::kDivides:
      what = fmt::format("{} divides size {} of {} {}", constraint.divisor, constraint.axis, a,
                         text(system_.kernel.types[constraint.a]));
      break;
    case Constraint::Kind::kRelayout:
      what = fmt::format("{} is read in the layout of {}", a, b);
      break;
    case Constraint::Kind::kTransfer:
      what = fmt::format("{} is made of {}", b, a);
      break;
    case Constraint::Kind::kWork:
      what = fmt::format("{} is worked on", a);
      break;
  }
  auto line = words_.lines.find(constraint.op);
  return line == words_.lines.end() ? what : fmt::format("{}: {}", what, line->second);
}

}  // namespace tenon::codegen
