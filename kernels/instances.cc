#include "kernels/instances.h"

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

bool Instances::read(RunContext& context, RunShapes& shapes) {
  for (size_t i = 0; i < shapes.inputs.size(); ++i) {
    shapes.inputs[i] = context.input(i);
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
  const bool fresh = shapes.instance == nullptr || shapes.instance->symbols != shapes.symbols;
  if (fresh) {
    shapes.instance.reset();
    shapes.instance = find(shapes.symbols);
  }
  for (size_t i = 0; i < shapes.inputs.size(); ++i) {
    if (!program_.inputs[i].shape) continue;
    const std::span<const int64_t> dims = shapes.inputs[i].dims;
    if (!std::equal(dims.begin(), dims.end(), shapes.instance->inputs[i].begin())) {
      shapes.instance.reset();
      refuse(i, dims);
    }
  }
  return fresh;
}

void Instances::refuse(size_t input, std::span<const int64_t> dims) const {
  const InputShape& expected = program_.inputs[input];
  throw UserError(fmt::format("input '{}' has shape [{}], but the model expects {}", expected.name,
                              fmt::join(dims, ","), text(*expected.shape)));
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
