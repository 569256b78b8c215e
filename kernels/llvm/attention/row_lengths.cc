#include "kernels/llvm/attention/row_lengths.h"

#include "kernels/llvm/attention/place_heads.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

using codegen::ValueId;

RowLengths row_lengths(const ir::Graph& graph, const AttentionProblem& problem, Lowered& lowered) {
  const ir::Attention& attention = problem.attention;
  const Dim bytes = problem.batch * 4;
  const RowLengths rows{lowered.add_scratch(bytes), lowered.add_scratch(bytes),
                        lowered.add_scratch(bytes)};
  LaunchWriter writer("row_lengths");
  codegen::Builder& b = writer.builder;
  const ValueId lengths =
      writer.buffer("lengths", storage_type(graph.value(attention.kv_lengths).dtype),
                    BufferArgument::value(attention.kv_lengths));
  const ValueId queries = writer.buffer("queries", DType::kI32, rows.queries);
  const ValueId keys = writer.buffer("keys", DType::kI32, rows.keys);
  const ValueId distances = writer.buffer("distances", DType::kI32, rows.distances);
  for (const Dim& dim : {problem.queries, problem.keys, problem.past, problem.all_keys}) {
    writer.declare(dim);
  }
  const ValueId batch = b.task();
  const ValueId given = b.index_from(b.load({lengths, batch, {}, {}}, {}));
  const ValueId length = b.max({b.index(0), b.min(given, writer.index(problem.all_keys))});
  const ValueId distance = attention.causal
                               ? writer.index(problem.queries)
                               : b.sub(length, kept_rows(writer, problem, lengths, batch));
  const auto store = [&](ValueId to, ValueId number) {
    b.store({to, batch, {}, {}}, b.splat(b.from_index(number, DType::kI32), {1}));
  };
  store(queries, writer.index(problem.queries));
  store(keys, length);
  store(distances, distance);
  lowered.launches.push_back(writer.finish(problem.batch, 100));
  lowered.launches.back().threads = 32;
  return rows;
}

}  // namespace tenon::kernels
