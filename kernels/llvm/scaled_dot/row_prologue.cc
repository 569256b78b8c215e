#include "kernels/llvm/scaled_dot/row_prologue.h"

#include "kernels/llvm/loop.h"

namespace tenon::kernels {

Support RowPrologue::supports() const {
  const Candidate& alone = loop_candidates()[0];
  if (Support answer = alone.supports(graph, loop, settings); !answer) return answer;
  Lowered unused;
  return LoopRow::supports(describe_loop(graph, loop, unused), settings);
}

LoopRow RowPrologue::declare(LaunchWriter& writer, Lowered& lowered) const {
  return LoopRow(writer, describe_loop(graph, loop, lowered), settings);
}

void RowPrologue::add_launches(const Dim& wanted, Lowered& lowered) const {
  Lowered alone = loop_candidates()[0].lower(graph, loop, settings);
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
