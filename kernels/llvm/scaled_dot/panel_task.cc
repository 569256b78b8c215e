#include "kernels/llvm/scaled_dot/panel_task.h"

namespace tenon::kernels {

using codegen::Builder;
using codegen::kNone;
using codegen::ValueId;
using Nothing = std::vector<ValueId>;

PanelTask locate_panel_task(LaunchWriter& writer, int64_t panels, int64_t row_block,
                            const Dim& rows) {
  Builder& b = writer.builder;
  PanelTask task;
  task.panel = b.rem({b.task(), b.index(panels)});
  task.first_row = b.mul({b.div({b.task(), b.index(panels)}), b.index(row_block)});
  task.rows = b.min({b.index(row_block), b.sub(writer.index(rows), task.first_row)});
  return task;
}

void clear_sums(Builder& b, ValueId sums, int width, ValueId lines) {
  b.loop({b.index(0), lines, b.index(1)}, {}, [&](ValueId line, auto) {
    b.store({{sums, b.mul(line, b.index(width))}, b.constant(DType::kF32, 0, {width})});
    return Nothing{};
  });
}

void for_k_blocks(Builder& b, ValueId k, int64_t k_block, const KBlockBody& body) {
  b.loop({b.index(0), k, b.index(k_block)}, {}, [&](ValueId kc, auto) {
    body(kc, b.min({b.index(k_block), b.sub(k, kc)}));
    return Nothing{};
  });
}

void for_micro_tiles(Builder& b, const std::vector<int>& heights, ValueId rows,
                     const MicroTileBody& body) {
  ValueId done = b.index(0);
  for (const int height : heights) {
    const ValueId tiles = b.div({b.sub(rows, done), b.index(height)});
    const ValueId end = b.add(done, b.mul(tiles, b.index(height)));
    b.loop(done, end, b.index(height), {}, [&](ValueId row, auto) {
      body(row, height);
      return Nothing{};
    });
    done = end;
  }
}

void store_panel_rows(LaunchWriter& writer, const PanelTask& task, const PanelColumns& panels,
                      Epilogue& epilogue, const RowSums& sums_of) {
  Builder& b = writer.builder;
  const bool whole = panels.n.is_constant() && panels.n.value() % panels.columns == 0;
  const ValueId column = b.mul(task.panel, b.index(panels.columns));
  const ValueId extent = whole ? kNone : b.sub(writer.index(panels.n), column);
  b.loop({b.index(0), task.rows, b.index(1)}, {}, [&](ValueId row, auto) {
    const Epilogue::Place place{b.add(task.first_row, row), column, extent};
    epilogue.emit(place, sums_of(row));
    return Nothing{};
  });
}

}  // namespace tenon::kernels
