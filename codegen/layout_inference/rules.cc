// What each operation asks of the layouts of its operands and results.
#include <algorithm>
#include <array>
#include <set>

#include "codegen/layout_inference/constraints.h"
#include "codegen/moves.h"
#include "codegen/product_operands.h"
#include "codegen/tile/op_info.h"

namespace tenon::codegen {

namespace {

using Kind = Constraint::Kind;

constexpr int64_t kTurnsOfALoop = 8, kMostTurns = 512;

class Rules {
 public:
  explicit Rules(System& system)
      : system_(system),
        folded_(folded_into_products(system.kernel, system.definitions, system.threads)) {}

  void visit(const Region& region) {
    for (const Operation& op : region.operations) {
      for (ValueId id : op.results) system_.splats[id] = is_splat(op);
      for (ValueId id : op.operands) system_.uses[std::max(id, 0)] += id != kNone;
      auto rule = std::ranges::find(kRules, op.op, &Entry::op);
      if (rule != kRules.end() && !folded_.contains(&op)) (this->*rule->add)(op);
      bool repeats = op.op == Op::kFor || op.op == Op::kPipeline;
      int64_t outside = times_;
      if (repeats) times_ = std::min(times_ * kTurnsOfALoop, kMostTurns);
      for (const Region& inner : op.regions) visit(inner);
      times_ = outside;
    }
  }

 private:
  struct Entry {
    Op op;
    void (Rules::*add)(const Operation&);
  };

  // Indices, buffers and single elements lie in one way only.
  bool is_variable(ValueId id) const {
    return id != kNone && system_.kernel.types[id].kind == Type::Kind::kTile &&
           !system_.shape(id).empty();
  }

  bool is_splat(const Operation& op) const {
    if (op.op == Op::kSplat) return true;
    if (op.op == Op::kConstant) return op.integers.empty();
    return is_elementwise(op.op) &&
           std::ranges::all_of(op.operands, [&](ValueId id) { return system_.splats[id]; });
  }

  void add(Constraint constraint) {
    bool between_two = constraint.kind == Kind::kEquals || constraint.kind == Kind::kRelayout ||
                       constraint.kind == Kind::kTransfer;
    if (!is_variable(constraint.a) || (between_two && !is_variable(constraint.b))) return;
    constraint.times = times_;
    system_.constraints.push_back(std::move(constraint));
  }
  void equals(const Operation& op, ValueId a, ValueId b) {
    add({.kind = Kind::kEquals, .a = a, .b = b, .op = &op});
  }
  void one_of(const Operation& op, ValueId a, std::vector<Layout> layouts) {
    add({.kind = Kind::kOneOf, .a = a, .op = &op, .layouts = std::move(layouts)});
  }
  void divides(const Operation& op, ValueId a, int axis, int divisor) {
    add({.kind = Kind::kDivides, .a = a, .op = &op, .axis = axis, .divisor = divisor});
  }
  void relayout(const Operation& op, ValueId a, ValueId b) {
    add({.kind = Kind::kRelayout, .a = a, .b = b, .op = &op});
  }
  void transfer(const Operation& op, size_t operand) {
    add({.kind = Kind::kTransfer,
         .a = op.operands[operand],
         .b = op.results[0],
         .op = &op,
         .operand = operand});
  }
  void work(const Operation& op, ValueId a) { add({.kind = Kind::kWork, .a = a, .op = &op}); }

  void elementwise(const Operation& op) {
    if (is_move(system_.kernel, op)) return move(op);
    for (ValueId id : op.operands) relayout(op, id, op.results[0]);
    work(op, op.results[0]);
  }

  void move(const Operation& op) {
    for (size_t i = 0; i < op.operands.size(); ++i) transfer(op, i);
  }

  void make(const Operation& op) { work(op, op.results[0]); }

  void reduce(const Operation& op) {
    transfer(op, 0);
    if (!is_variable(op.results[0])) work(op, op.operands[0]);
  }

  void lookup(const Operation& op) {
    relayout(op, op.operands[1], op.results[0]);
    work(op, op.results[0]);
  }

  void gather(const Operation& op) {
    for (size_t i = 2; i < op.operands.size(); ++i) relayout(op, op.operands[i], op.results[0]);
    work(op, op.results[0]);
  }

  void scatter(const Operation& op) {
    for (size_t i : {2, 4}) relayout(op, op.operands[i], op.operands[3]);
    work(op, op.operands[3]);
  }

  void store(const Operation& op) { work(op, op.operands[2]); }

  void dot(const Operation& op) {
    relayout(op, op.operands[0], op.results[0]);
    auto ring = ring_dot(system_.kernel, system_.definitions, op, system_.threads);
    if (ring) return product_of_stages(op, *ring);
    bool on_tensor_cores = is_tensor_core_dot(system_.kernel, op);
    if (on_tensor_cores) {
      const std::vector<int>& shape = system_.shape(op.results[0]);
      one_of(op, op.results[0],
             {Layout::mma(shape, system_.threads, /*rows_together=*/false),
              Layout::mma(shape, system_.threads, /*rows_together=*/true)});
    }
    for (size_t operand : {1, 2}) {
      if (!on_tensor_cores) {
        transfer(op, operand);
        continue;
      }
      ValueId id = op.operands[operand];
      for (const auto& part : product_operand(system_.kernel, system_.definitions, id).parts) {
        add({.kind = Kind::kTransfer,
             .a = part.id,
             .b = op.results[0],
             .op = &op,
             .operand = operand});
      }
    }
    work(op, op.results[0]);
  }

  // Sums by 64 rows to a warpgroup; on the left four words for 16 columns, in registers or a stage.
  void product_of_stages(const Operation& op, const RingDot& ring) {
    constexpr int kWarpgroup = 128, kRows = 64, kColumns = 8, kStep = 16;
    ValueId sums = op.results[0], left = op.operands[1];
    divides(op, sums, 0, kRows * system_.threads / kWarpgroup);
    divides(op, sums, 1, kColumns);
    divides(op, left, 1, kStep);
    one_of(op, sums, {*Layout::sums(system_.shape(sums), system_.threads)});
    if (!ring.right) {
      ValueId right = op.operands[2];
      one_of(op, right,
             {*Layout::right_operand(system_.shape(right), system_.threads,
                                     static_cast<int>(op.integer), ring.rows_are_k)});
    }
    if (ring.left) return;
    one_of(op, left, {*Layout::left_operand(system_.shape(left), system_.threads)});
  }

  void carry(const Operation& op, const Region& body, size_t first_operand, size_t first_argument) {
    for (size_t i = 0; i < op.results.size(); ++i) {
      ValueId inside = body.arguments[first_argument + i];
      equals(op, inside, op.results[i]);
      relayout(op, op.operands[first_operand + i], inside);
      int64_t outside = times_;
      times_ = std::min(times_ * kTurnsOfALoop, kMostTurns);
      relayout(op, body.operations.back().operands[i], inside);
      times_ = outside;
    }
  }
  void loop(const Operation& op) { carry(op, op.regions[0], 3, 1); }
  void pipeline(const Operation& op) { carry(op, op.regions[1], 2, 2); }

  void branch(const Operation& op) {
    for (size_t i = 0; i < op.results.size(); ++i) {
      for (const Region& region : op.regions) {
        relayout(op, region.operations.back().operands[i], op.results[i]);
      }
    }
  }

  static constexpr std::array kRules{
      Entry{Op::kConstant, &Rules::make},       Entry{Op::kIota, &Rules::make},
      Entry{Op::kUnary, &Rules::elementwise},   Entry{Op::kBinary, &Rules::elementwise},
      Entry{Op::kTernary, &Rules::elementwise}, Entry{Op::kCompare, &Rules::elementwise},
      Entry{Op::kSelect, &Rules::elementwise},  Entry{Op::kCast, &Rules::elementwise},
      Entry{Op::kBitcast, &Rules::elementwise}, Entry{Op::kBroadcast, &Rules::move},
      Entry{Op::kReshape, &Rules::move},        Entry{Op::kTranspose, &Rules::move},
      Entry{Op::kSlice, &Rules::move},          Entry{Op::kConcat, &Rules::move},
      Entry{Op::kPermute, &Rules::move},        Entry{Op::kReduce, &Rules::reduce},
      Entry{Op::kLookup, &Rules::lookup},       Entry{Op::kDot, &Rules::dot},
      Entry{Op::kDotI8, &Rules::dot},           Entry{Op::kLoad, &Rules::make},
      Entry{Op::kStore, &Rules::store},         Entry{Op::kGather, &Rules::gather},
      Entry{Op::kScatter, &Rules::scatter},     Entry{Op::kRead, &Rules::make},
      Entry{Op::kPipeline, &Rules::pipeline},   Entry{Op::kFor, &Rules::loop},
      Entry{Op::kIf, &Rules::branch},
  };

  System& system_;
  std::set<const Operation*> folded_;
  int64_t times_ = 1;
};

}  // namespace

System constraints_of(const Kernel& kernel, int threads) {
  System out{kernel,
             threads,
             definitions_of(kernel),
             std::vector<bool>(kernel.types.size()),
             std::vector<int>(kernel.types.size()),
             {}};
  Rules(out).visit(kernel.body);
  return out;
}

}  // namespace tenon::codegen
