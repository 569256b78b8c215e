#include "kernels/llvm/scaled_dot/row_prologue.h"

#include "base/error.h"
#include "kernels/llvm/loop.h"

namespace tenon::kernels {

namespace {

// Constants and scratch that come behind those of `lowered`.
void move_behind(const Lowered& lowered, BufferArgument& buffer) {
  if (buffer.kind == BufferArgument::Kind::kPacked) {
    buffer.id += static_cast<int32_t>(lowered.packed.size());
  }
  if (buffer.kind == BufferArgument::Kind::kScratch) {
    buffer.id += static_cast<int32_t>(lowered.scratch.size());
  }
}

void append(const Lowered& more, Lowered& lowered) {
  const auto add = [](auto& all, const auto& others) {
    all.insert(all.end(), others.begin(), others.end());
  };
  add(lowered.packed, more.packed);
  add(lowered.scratch, more.scratch);
  add(lowered.sizes, more.sizes);
}

}  // namespace

RowPrologue::RowPrologue(const ir::Graph& graph, const ir::Node& loop, const Settings& settings)
    : settings_(settings), alone_(Planned::no("")) {
  try {
    problem_ = describe_loop(graph, loop, constants_);
    alone_ = plan_described_loop(graph, problem_, constants_, settings_);
  } catch (const UserError& error) {
    alone_ = Planned::no(error.what());
  }
}

Support RowPrologue::supports() const {
  return alone_.support ? LoopRow::supports(problem_, settings_) : alone_.support;
}

LoopRow RowPrologue::declare(LaunchWriter& writer, Lowered& lowered) const {
  LoopProblem problem = problem_;
  for (auto& [value, buffer] : problem.buffers) move_behind(lowered, buffer);
  append(constants_, lowered);
  return LoopRow(writer, std::move(problem), settings_);
}

void RowPrologue::add_launches(const Dim& wanted, Lowered& lowered) const {
  Lowered alone = alone_.plan->lower();
  for (Launch& launch : alone.launches) {
    for (BufferArgument& buffer : launch.buffers) move_behind(lowered, buffer);
    launch.tasks = launch.tasks * wanted;
    lowered.launches.push_back(std::move(launch));
  }
  append(alone, lowered);
}

}  // namespace tenon::kernels
