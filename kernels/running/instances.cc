#include "kernels/running/instances.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace tenon::kernels {

RunShapes Instances::make_shapes() const {
  RunShapes shapes;
  shapes.inputs.resize(program_.inputs.size());
  shapes.symbols.resize(program_.binding.symbols().size());
  return shapes;
}

std::shared_ptr<const ShapeInstance> Instances::only() {
  const auto is_known = [](const InputShape& input) {
    return input.shape && is_static(*input.shape);
  };
  if (!program_.binding.symbols().empty() || !std::ranges::all_of(program_.inputs, is_known)) {
    return nullptr;
  }
  try {
    return find({});
  } catch (const UserError&) {
    return nullptr;
  }
}

bool Instances::read(RunContext& context, RunShapes& shapes) {
  for (size_t i = 0; i < shapes.inputs.size(); ++i) shapes.inputs[i] = context.input(i);
  // The sizes of a warm Run are those of the one before: no symbol is solved for again.
  if (shapes.instance != nullptr && first_misfit(shapes) == shapes.inputs.size()) return false;
  shapes.instance.reset();
  solve(shapes);
  shapes.instance = find(shapes.symbols);
  if (const size_t input = first_misfit(shapes); input < shapes.inputs.size()) {
    const std::vector<int64_t> wanted = shapes.instance->inputs[input];
    shapes.instance.reset();
    refuse(input, shapes.inputs[input].dims, wanted);
  }
  return true;
}

// The first input whose sizes are not the instance's; as many as there are inputs: all fit.
size_t Instances::first_misfit(const RunShapes& shapes) const {
  for (size_t i = 0; i < shapes.inputs.size(); ++i) {
    if (!program_.inputs[i].shape) continue;
    if (!std::ranges::equal(shapes.inputs[i].dims, shapes.instance->inputs[i])) return i;
  }
  return shapes.inputs.size();
}

void Instances::solve(RunShapes& shapes) const {
  for (size_t i = 0; i < shapes.inputs.size(); ++i) {
    const InputShape& expected = program_.inputs[i];
    const std::span<const int64_t> dims = shapes.inputs[i].dims;
    if (expected.shape && expected.shape->size() != dims.size()) refuse(i, dims);
  }
  const auto& sources = program_.binding.sources();
  for (size_t i = 0; i < sources.size(); ++i) {
    const SymbolBinding::Source& source = sources[i];
    const int64_t extent = shapes.inputs[source.input].dims[source.axis];
    shapes.symbols[i] = (extent - source.summand) / source.factor;
  }
}

void Instances::refuse(size_t input, std::span<const int64_t> dims,
                       std::span<const int64_t> wanted) const {
  const InputShape& expected = program_.inputs[input];
  std::string message = fmt::format("input '{}' has shape [{}], but the model expects {}",
                                    expected.name, fmt::join(dims, ","), text(*expected.shape));
  if (!wanted.empty() && !is_static(*expected.shape)) {
    message +=
        fmt::format(", which by the sizes of the other inputs is [{}]", fmt::join(wanted, ","));
  }
  throw UserError(message);
}

std::shared_ptr<const ShapeInstance> Instances::find(const std::vector<int64_t>& symbols) {
  const auto same = [&](const auto& instance) { return instance->symbols == symbols; };
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(kept_.begin(), kept_.end(), same);
    if (found != kept_.end()) {
      std::rotate(kept_.begin(), found, found + 1);
      return kept_.front();
    }
  }
  auto made = instantiate(program_, symbols, threads_);
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), same);
  if (found != kept_.end()) return *found;
  if (kept_.size() >= kKept) kept_.pop_back();
  kept_.insert(kept_.begin(), made);
  return made;
}

}  // namespace tenon::kernels
