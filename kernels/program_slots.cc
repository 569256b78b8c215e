#include "kernels/program_slots.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file_pages.h"
#include "kernels/planning/views.h"

namespace tenon::kernels {

Dim storage_bytes_of(const ir::Value& value) {
  return ceil_div(element_count(*value.shape) * Dim(bit_width(value.dtype)), Dim(8));
}

ProgramSlots::ProgramSlots(const ir::Graph& graph, bool on_gpu, Program& program)
    : graph_(graph), on_gpu_(on_gpu), program_(program), slot_of_(graph.value_count(), kUnplaced) {
  for (size_t id = 0; id < graph.value_count(); ++id) root_.push_back(static_cast<ir::ValueId>(id));
  for (ir::NodeId id : graph.order()) {
    const ir::Node& node = graph.node(id);
    if (is_view(node)) root_[node.output(0)] = root_[node.input(0)];
  }
  place_callers();
}

// A computed value that leaves the graph is computed right into the caller's buffer.
void ProgramSlots::place_callers() {
  for (size_t index = 0; index < graph_.inputs().size(); ++index) {
    const ir::Value& input = graph_.value(graph_.inputs()[index]);
    const Dim bytes = input.shape ? storage_bytes_of(input) : Dim(0);
    slot_of_[graph_.inputs()[index]] =
        add({Slot::Kind::kInput, index, {}, bytes, 0, 0, input.name});
  }
  for (size_t index = 0; index < graph_.outputs().size(); ++index) {
    const ir::Value& output = graph_.value(graph_.outputs()[index]);
    const size_t slot =
        add({Slot::Kind::kOutput, index, {}, storage_bytes_of(output), 0, 0, output.name});
    program_.output_slots.push_back(slot);
    const ir::ValueId root = root_[graph_.outputs()[index]];
    if (graph_.producer(root) != nullptr && slot_of_[root] == kUnplaced) slot_of_[root] = slot;
  }
}

size_t ProgramSlots::of(ir::ValueId id) {
  const ir::ValueId root = root_.at(id);
  if (slot_of_[root] != kUnplaced) return slot_of_[root];
  const ir::Value& value = graph_.value(root);
  if (value.is_constant()) return slot_of_[root] = keep_constant(value);
  if (!value.shape) {
    throw UserError(fmt::format("the rank of value '{}' is not known", value.name));
  }
  return slot_of_[root] = add({Slot::Kind::kArena,
                               0,
                               {},
                               storage_bytes_of(value),
                               next_launch(),
                               next_launch(),
                               value.name});
}

size_t ProgramSlots::of(const BufferArgument& argument, const SlotsOfLowered& places) {
  switch (argument.kind) {
    case BufferArgument::Kind::kValue:
      return of(argument.id);
    case BufferArgument::Kind::kPacked:
      return places.packed.at(argument.id);
    case BufferArgument::Kind::kScratch:
      return places.scratch.at(argument.id);
    case BufferArgument::Kind::kCounters:
      return places.counters.at(argument.id);
  }
  throw InternalError("an argument of no kind");
}

SlotsOfLowered ProgramSlots::place(Lowered& lowered, const std::string& node) {
  SlotsOfLowered places;
  for (PackedConstant& constant : lowered.packed) {
    places.packed.push_back(add_packed(constant, node));
  }
  leave_sources(lowered, places);
  for (const Scratch& scratch : lowered.scratch) {
    Slot slot{Slot::Kind::kArena,
              0,
              {},
              scratch.bytes,
              next_launch(),
              next_launch(),
              fmt::format("scratch {} of {}", places.scratch.size(), node)};
    if (scratch.own) {
      slot.own = true;
      slot.first = 0;
      slot.last = std::numeric_limits<int>::max();
    }
    places.scratch.push_back(add(std::move(slot)));
  }
  for (const Dim& count : lowered.counters) {
    places.counters.push_back(
        add({Slot::Kind::kCounters,
             0,
             {},
             count * Dim(sizeof(int32_t)),
             0,
             0,
             fmt::format("counters {} of {}", places.counters.size(), node)}));
  }
  return places;
}

size_t ProgramSlots::add_packed(PackedConstant& constant, const std::string& node) {
  program_.packed_bytes += constant.bytes;
  Slot slot{
      Slot::Kind::kConstant, 0, constant.data, static_cast<int64_t>(constant.bytes), 0, 0, node};
  if (constant.data == nullptr && on_gpu_) {
    slot.pack = std::move(constant.pack);
    slot.unit = constant.unit;
    slot.on_device = std::move(constant.on_device);
  } else if (constant.data == nullptr) {
    slot.data = pack_whole(constant.bytes, constant.pack, constant.unit);
  }
  return add(std::move(slot));
}

// A weight that was packed need not lie in memory a second time. For a GPU it is packed later.
void ProgramSlots::leave_sources(const Lowered& lowered, const SlotsOfLowered& places) {
  Slot* last_packed_later = nullptr;
  for (const size_t slot : places.packed) {
    if (program_.slots[slot].pack != nullptr) last_packed_later = &program_.slots[slot];
  }
  for (const ir::ValueId id : lowered.replaced_constants) {
    const ir::TensorPtr& tensor = graph_.value(id).constant;
    if (tensor == nullptr) continue;
    const std::span<const std::byte> bytes{tensor->data, tensor->bytes};
    if (last_packed_later != nullptr) {
      last_packed_later->sources.push_back(bytes);
    } else {
      release_file_pages(bytes);
    }
  }
}

// The bytes of a constant outlive the model that brought them: kept where somebody owns them,
// copied otherwise. For a GPU they are copied once, right to it.
size_t ProgramSlots::keep_constant(const ir::Value& value) {
  const ir::Tensor& tensor = *value.constant;
  program_.packed_bytes += tensor.bytes;
  Slot slot{Slot::Kind::kConstant, 0, {}, static_cast<int64_t>(tensor.bytes), 0, 0, value.name};
  const PackPiece copy = [from = tensor.data](int64_t first, std::span<std::byte> out) {
    if (out.empty()) return;
    std::memcpy(out.data(), from + first, out.size());
    release_file_pages({from + first, out.size()});
  };
  if (tensor.owner != nullptr) {
    slot.data = std::shared_ptr<const void>(value.constant, tensor.data);
  } else if (on_gpu_) {
    slot.pack = copy;
  } else {
    slot.data = pack_whole(tensor.bytes, copy, 1);
  }
  return add(std::move(slot));
}

void ProgramSlots::touch(size_t slot) {
  int& last = program_.slots[slot].last;
  last = std::max(last, next_launch());
}

size_t ProgramSlots::add(Slot slot) {
  program_.slots.push_back(std::move(slot));
  return program_.slots.size() - 1;
}

}  // namespace tenon::kernels
