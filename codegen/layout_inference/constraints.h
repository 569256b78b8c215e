// Which tile lies how, as a system of constraints over the layouts of a kernel's tiles. Rules
// (rules.cc) say what each operation asks for; solve.h finds the cheapest layouts that obey.
#pragma once

#include <string>
#include <vector>

#include "codegen/layouts.h"
#include "codegen/tile/ir.h"
#include "codegen/tile/text.h"

namespace tenon::codegen {

struct Constraint {
  enum class Kind : uint8_t {
    // These hold, or there is no solution.
    kEquals,   // a lies as b does
    kOneOf,    // a lies as one of `layouts`: what an instruction reads or leaves
    kDivides,  // `divisor` divides the size of a along `axis`
    // These have a price.
    kRelayout,  // a is read in the layout of b
    kTransfer,  // a is operand number `operand` of `op`, which makes b of it
    kWork,      // what `op` does with a alone: arithmetic, or access to memory
  } kind{};
  ValueId a = kNone, b = kNone;
  const Operation* op = nullptr;  // whose rule it is
  size_t operand = 0;
  std::vector<Layout> layouts = {};
  int axis = 0, divisor = 1;
  int64_t times = 1;  // how often it has to be paid, about

  bool is_hard() const { return kind <= Kind::kDivides; }
};

struct System {
  const Kernel& kernel;
  int threads;
  std::vector<const Operation*> definitions;
  std::vector<bool> splats;  // all elements are one number: in any layout for nothing
  std::vector<int> uses;     // of a value as an operand
  std::vector<Constraint> constraints;

  const std::vector<int>& shape(ValueId id) const { return kernel.types[id].shape; }
};

// One rule per operation.
System constraints_of(const Kernel& kernel, int threads);

// Constraints as people read them, each with the text of its operation.
class ConstraintPrinter {
 public:
  explicit ConstraintPrinter(const System& system);
  std::string operator()(const Constraint& constraint) const;

 private:
  const System& system_;
  KernelWords words_;
};

// What the other end of a constraint may be such that nothing changes threads: forward from a to b,
// backward from b to a. Tiles that are merely dealt ask for nothing.
std::vector<Layout> proposals(const System& system, const Constraint& constraint, bool forward,
                              const Layout& from);

// Instructions of a thread, about, in eighths; `b` only for constraints between two.
int64_t price(const System& system, const Constraint& constraint, const Layout& a, const Layout* b);

}  // namespace tenon::codegen
