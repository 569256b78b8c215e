#include "kernels/launch_values.h"

#include "codegen/tile/op_info.h"
#include "kernels/program_slots.h"

namespace tenon::kernels {
namespace {

void collect_fetched(const codegen::Region& region, std::set<codegen::ValueId>& buffers) {
  for (const codegen::Operation& operation : region.operations) {
    if (const codegen::OpInfo& known = codegen::info(operation.op); known.fetches) {
      codegen::for_each_buffer(operation, known.reads,
                               [&](codegen::ValueId id) { buffers.insert(id); });
    }
    for (const codegen::Region& inner : operation.regions) collect_fetched(inner, buffers);
  }
}

}  // namespace

void for_values(const Launch& launch, const std::function<void(size_t, ir::ValueId)>& visit) {
  auto argument = launch.buffers.begin();
  for (size_t i = 0; i < launch.kernel.parameters.size(); ++i) {
    if (launch.kernel.parameters[i].type.kind != codegen::Type::Kind::kBuffer) continue;
    const BufferArgument& buffer = *argument++;
    if (buffer.kind == BufferArgument::Kind::kValue) visit(i, buffer.id);
  }
}

std::set<codegen::ValueId> fetched_buffers(const codegen::Kernel& kernel) {
  std::set<codegen::ValueId> buffers;
  collect_fetched(kernel.body, buffers);
  return buffers;
}

bool fetches(const Launch& launch) { return !fetched_buffers(launch.kernel).empty(); }

std::vector<FetchedBuffer> fetched_values(const ir::Graph& graph, const Launch& launch) {
  const std::set<codegen::ValueId> fetched = fetched_buffers(launch.kernel);
  std::vector<FetchedBuffer> values;
  for_values(launch, [&](size_t parameter, ir::ValueId id) {
    if (!fetched.contains(static_cast<codegen::ValueId>(parameter))) return;
    values.push_back({parameter, storage_bytes_of(graph.value(id))});
  });
  return values;
}

}  // namespace tenon::kernels
