#include "kernels/llvm/scaled_dot/row_prologue.h"

#include "kernels/llvm/loop.h"

namespace tenon::kernels {

RowPrologue::RowPrologue(const ir::Graph& graph, ir::Node loop, const Settings& settings)
    : graph_(graph),
      loop_(std::move(loop)),
      settings_(settings),
      alone_(loop_candidates()[0].plan(graph_, loop_, settings_)) {}

Support RowPrologue::supports() const {
  if (!alone_.support) return alone_.support;
  Lowered unused;
  return LoopRow::supports(describe_loop(graph_, loop_, unused), settings_);
}

LoopRow RowPrologue::declare(LaunchWriter& writer, Lowered& lowered) const {
  return LoopRow(writer, describe_loop(graph_, loop_, lowered), settings_);
}

void RowPrologue::add_launches(const Dim& wanted, Lowered& lowered) const {
  Lowered alone = alone_.plan->lower();
  // Its constants and scratch come behind those that are there.
  const auto packed = static_cast<int32_t>(lowered.packed.size());
  const auto scratch = static_cast<int32_t>(lowered.scratch.size());
  for (Launch& launch : alone.launches) {
    for (BufferArgument& buffer : launch.buffers) {
      if (buffer.kind == BufferArgument::Kind::kPacked) buffer.id += packed;
      if (buffer.kind == BufferArgument::Kind::kScratch) buffer.id += scratch;
    }
    launch.tasks = launch.tasks * wanted;
    lowered.launches.push_back(std::move(launch));
  }
  const auto move_behind = [](auto& all, auto& more) {
    for (auto& one : more) all.push_back(std::move(one));
  };
  move_behind(lowered.packed, alone.packed);
  move_behind(lowered.scratch, alone.scratch);
  move_behind(lowered.sizes, alone.sizes);
}

}  // namespace tenon::kernels
