#include "codegen/interpret.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "codegen/interpret/interpreter.h"
#include "codegen/tile/op_info.h"
#include "codegen/tile/verify.h"

namespace tenon::codegen {

Interpreter::Interpreter(const Kernel& kernel, std::span<void* const> buffers,
                         std::span<const int64_t> indices, LaunchMemory* memory)
    : kernel_(kernel), values_(kernel.types.size()), memory_(memory) {
  if (memory_ != nullptr) pdl_ = pdl_of(kernel);
  size_t buffer = 0, index = 0;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const bool is_buffer = kernel.parameters[i].type.kind == Type::Kind::kBuffer;
    if (is_buffer ? buffer == buffers.size() : index == indices.size()) {
      throw InternalError(fmt::format("kernel @{}: parameter %{} got no argument", kernel.name,
                                      kernel.parameters[i].name));
    }
    if (is_buffer) {
      values_[i].buffer = static_cast<std::byte*>(buffers[buffer++]);
    } else {
      values_[i].index = indices[index++];
    }
  }
  require_no_race();
}

namespace {

struct Touched {
  std::set<ValueId> fetched, written;
};

void collect_touched(const Region& region, Touched& touched) {
  for (const Operation& op : region.operations) {
    const OpInfo& known = info(op.op);
    if (known.fetches) {
      for_each_buffer(op, known.reads, [&](ValueId id) { touched.fetched.insert(id); });
    }
    for_each_buffer(op, known.writes, [&](ValueId id) { touched.written.insert(id); });
    for (const Region& inner : op.regions) collect_touched(inner, touched);
  }
}

}  // namespace

// On a GPU copies run ahead of everything else that the task does, and of other tasks. What counts
// of a constant nobody writes, whatever lies beside it.
void Interpreter::require_no_race() const {
  Touched touched;
  collect_touched(kernel_.body, touched);
  for (ValueId fetched : touched.fetched) {
    if (kernel_.parameters.at(static_cast<size_t>(fetched)).constant) continue;
    for (ValueId written : touched.written) {
      const std::byte* memory = values_[fetched].buffer;
      if (fetched != written && (memory == nullptr || memory != values_[written].buffer)) continue;
      throw InternalError(fmt::format("kernel @{}: %{} is fetched ahead and written by one launch",
                                      kernel_.name, kernel_.parameters.at(fetched).name));
    }
  }
}

void Interpreter::run_task(int64_t task) {
  task_ = task;
  scratch_.clear();
  rings_.clear();
  if (memory_ != nullptr) {
    memory_->begin_task();
    has_waited_ = pdl_.wait != Pdl::Wait::kLate;
    copies_wait_ = false;
    if (has_waited_) memory_->wait();
  }
  run(kernel_.body);
}

TileData& Interpreter::fresh(ValueId id) {
  TileData& out = values_[id].tile;
  out.reset(type(id));
  return out;
}

void Interpreter::run(const Region& region) {
  for (const Operation& op : region.operations) {
    const bool names_itself = !op.regions.empty();
    if (names_itself) {
      run(op);
    } else {
      run_checked(op);
    }
  }
}

// Says where it happened.
void Interpreter::run_checked(const Operation& op) {
  try {
    run(op);
  } catch (const InternalError& error) {
    throw InternalError(
        fmt::format("kernel @{}, task {}: {}: {}", kernel_.name, task_, name(op.op), error.what()));
  }
}

void Interpreter::run(const Operation& op) {
  switch (info(op.op).group) {
    case OpGroup::kIndex:
      return index_operation(op);
    case OpGroup::kMake:
    case OpGroup::kElementwise:
    case OpGroup::kShape:
    case OpGroup::kProduct:
      return tile_operation(op);
    case OpGroup::kMemory:
      return memory_operation(op);
    case OpGroup::kRing:
      return ring_operation(op);
    case OpGroup::kControl:
      return control_operation(op);
  }
}

void Interpreter::control_operation(const Operation& op) {
  switch (op.op) {
    case Op::kPipeline:
      return pipeline(op);
    case Op::kFor:
      return for_loop(op);
    case Op::kIf:
      return branch(op);
    default:  // kYield: whoever runs the region takes the values
      return;
  }
}

void Interpreter::tile_operation(const Operation& op) {
  TileData& out = fresh(op.results[0]);
  std::vector<const TileData*> in;
  if (op.op != Op::kFromIndex) {
    for (ValueId id : op.operands) in.push_back(&tile(id));
  }
  switch (op.op) {
    case Op::kFromIndex: {
      static const Type kWide = Type::tile(DType::kI64);
      TileData number;
      number.reset(kWide);
      *number.data<int64_t>() = index(op.operands[0]);
      return interpret_cast(number, out);
    }
    case Op::kConstant:
    case Op::kIota:
      return interpret_constant(op, out);
    case Op::kLookup:
      return interpret_lookup(in, out);
    case Op::kDot:
      return interpret_dot(op, in, out);
    case Op::kDotI8:
      return interpret_dot_i8(in, out);
    case Op::kSplat:
    case Op::kBroadcast:
    case Op::kReshape:
    case Op::kTranspose:
    case Op::kSlice:
    case Op::kConcat:
    case Op::kPermute:
    case Op::kReduce:
      return interpret_shape(op, in, out);
    default:
      return interpret_elementwise(op, in, out);
  }
}

void Interpreter::index_operation(const Operation& op) {
  const int64_t value = computed_index(op);
  if (type(op.results[0]).kind == Type::Kind::kIndex) {
    values_[op.results[0]].index = value;
  } else {
    *fresh(op.results[0]).data<bool>() = value != 0;
  }
}

int64_t Interpreter::computed_index(const Operation& op) const {
  auto at = [&](size_t i) { return index(op.operands[i]); };
  switch (op.op) {
    case Op::kTask:
      return task_;
    case Op::kIndexConstant:
      return op.integer;
    case Op::kIndexAdd:
      return at(0) + at(1);
    case Op::kIndexSub:
      return at(0) - at(1);
    case Op::kIndexMul:
      return at(0) * at(1);
    case Op::kIndexDiv:
    case Op::kIndexRem:
      if (at(0) < 0 || at(1) <= 0) {
        throw InternalError(
            fmt::format("{} by {} is defined for non-negative numbers only", at(0), at(1)));
      }
      return op.op == Op::kIndexDiv ? at(0) / at(1) : at(0) % at(1);
    case Op::kIndexMin:
      return std::min(at(0), at(1));
    case Op::kIndexMax:
      return std::max(at(0), at(1));
    case Op::kIndexLess:
      return at(0) < at(1);
    case Op::kIndexEqual:
      return at(0) == at(1);
    case Op::kIndexSelect:
      return truth(op.operands[0]) ? at(1) : at(2);
    default:  // kIndexFromTile
      return indices_of(op.operands[0])[0];
  }
}

void Interpreter::assign(std::span<const ValueId> to, std::span<const ValueId> from) {
  std::vector<Value> values;
  for (ValueId id : from) values.push_back(values_[id]);
  for (size_t i = 0; i < to.size(); ++i) values_[to[i]] = std::move(values[i]);
}

void Interpreter::for_loop(const Operation& op) {
  const Region& body = op.regions[0];
  const std::span arguments = std::span(body.arguments).subspan(1);
  const int64_t lo = index(op.operands[0]), hi = index(op.operands[1]),
                step = index(op.operands[2]);
  if (step <= 0) {
    throw InternalError(fmt::format("kernel @{}: for: step {} never ends", kernel_.name, step));
  }
  assign(arguments, std::span(op.operands).subspan(3));
  for (int64_t counter = lo; counter < hi; counter += step) {
    values_[body.arguments[0]].index = counter;
    run(body);
    assign(arguments, body.operations.back().operands);
  }
  assign(op.results, arguments);
}

void Interpreter::branch(const Operation& op) {
  const Region& taken = op.regions[truth(op.operands[0]) ? 0 : 1];
  run(taken);
  assign(op.results, taken.operations.back().operands);
}

// ---- pipelines

namespace {

void collect_rings(const Region& region, std::set<ValueId>& rings) {
  for (const Operation& op : region.operations) {
    if (info(op.op).fetches || op.op == Op::kRead) rings.insert(op.operands[0]);
    // A pipeline inside moves its own rings.
    if (op.op == Op::kPipeline) continue;
    for (const Region& inner : op.regions) collect_rings(inner, rings);
  }
}

}  // namespace

std::vector<Ring*> Interpreter::rings_of(const Operation& pipeline) {
  std::set<ValueId> ids;
  for (const Region& region : pipeline.regions) collect_rings(region, ids);
  std::vector<Ring*> rings;
  for (ValueId id : ids) {
    Ring& ring = rings_.at(id);
    if (ring.stages() != pipeline.integer) {
      throw InternalError(fmt::format("kernel @{}: pipeline: has {} stages, and its ring %{} {}",
                                      kernel_.name, pipeline.integer, id, ring.stages()));
    }
    if (!rings.empty() && ring.position() != rings[0]->position()) {
      throw InternalError(
          fmt::format("kernel @{}: pipeline: its rings stand at steps {} and {}; rings that are "
                      "used together must always be",
                      kernel_.name, rings[0]->position(), ring.position()));
    }
    rings.push_back(&ring);
  }
  return rings;
}

void Interpreter::pipeline(const Operation& op) {
  const Region &produce = op.regions[0], &consume = op.regions[1];
  const std::vector<Ring*> rings = rings_of(op);
  const int64_t lo = index(op.operands[0]), hi = index(op.operands[1]), stages = op.integer;
  const int64_t before = rings.empty() ? 0 : rings[0]->position();  // steps
  auto enter = [&](const Region& half, int64_t counter, int64_t step) {
    values_[half.arguments[0]].index = counter;
    values_[half.arguments[1]].index = step % stages;
    run(half);
  };
  const std::span arguments = std::span(consume.arguments).subspan(2);
  assign(arguments, std::span(op.operands).subspan(2));
  int64_t produced = lo;
  for (int64_t counter = lo; counter < hi; ++counter) {
    for (; produced < std::min(hi, counter + stages); ++produced) {
      for (Ring* ring : rings) ring->begin_produce(before + produced - lo);
      enter(produce, produced, before + produced - lo);
      for (Ring* ring : rings) ring->end_produce();
    }
    end_of_first_copies();
    for (Ring* ring : rings) ring->begin_consume(before + counter - lo);
    enter(consume, counter, before + counter - lo);
    for (Ring* ring : rings) ring->end_consume();
    assign(arguments, consume.operations.back().operands);
  }
  end_of_first_copies();
  for (Ring* ring : rings) ring->advance(std::max<int64_t>(0, hi - lo));
  assign(op.results, arguments);
}

// ---- the entrance

void interpret(const Kernel& kernel, std::span<void* const> buffers,
               std::span<const int64_t> indices, int64_t first, int64_t last,
               LaunchMemory* memory) {
  if (Support support = verify(kernel); !support) throw InternalError(support.reason);
  Interpreter interpreter(kernel, buffers, indices, memory);
  for (int64_t task = first; task < last; ++task) interpreter.run_task(task);
}

namespace {

bool any_operation(const Region& region, bool (*matches)(const Kernel&, const Operation&),
                   const Kernel& kernel) {
  return std::ranges::any_of(region.operations, [&](const Operation& op) {
    return matches(kernel, op) || std::ranges::any_of(op.regions, [&](const Region& inner) {
             return any_operation(inner, matches, kernel);
           });
  });
}

// The host emitter writes a dot out as one fma for each vector of n, m and k.
bool only_interpreted(const Kernel& kernel, const Operation& op) {
  constexpr int64_t kLanes = 16, kMostVectors = 1 << 12;
  if (op.op == Op::kRing || op.op == Op::kPipeline) return true;
  if (op.op != Op::kDot) return false;
  const std::vector<int>&sums = kernel.types[op.operands[0]].shape,
        &left = kernel.types[op.operands[1]].shape;
  const int64_t vectors = (sums[1] + kLanes - 1) / kLanes;
  return int64_t{sums[0]} * left[1] * vectors > kMostVectors;
}

}  // namespace

bool needs_interpreter(const Kernel& kernel) {
  return any_operation(kernel.body, only_interpreted, kernel);
}

}  // namespace tenon::codegen
