#include "kernels/running/instances.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/convert.h"
#include "base/error.h"

namespace tenon::kernels {

void load_elements(DType dtype, const void* from, std::span<int64_t> to) {
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = load_integer(dtype, from, static_cast<int64_t>(i));
  }
}

RunShapes Instances::make_shapes() const {
  RunShapes shapes;
  shapes.inputs.resize(program_.inputs.size());
  shapes.elements.resize(program_.inputs.size());
  shapes.symbols.resize(program_.binding.symbols().size());
  return shapes;
}

std::shared_ptr<const ShapeInstance> Instances::only() {
  const auto is_known = [](const ProgramInput& input) {
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

bool Instances::read(RunContext& context, RunShapes& shapes, const ReadElements& read_elements) {
  const size_t count = shapes.inputs.size();
  for (size_t i = 0; i < count; ++i) shapes.inputs[i] = context.input(i);
  take_elements(shapes, read_elements);
  // The sizes of a warm Run are those of the one before: no symbol is solved for again.
  const auto fits = [&] {
    return first_misfit(shapes) == count && first_other_elements(shapes) == count;
  };
  if (shapes.instance != nullptr && fits()) return false;
  shapes.instance.reset();
  solve(shapes);
  const auto instance = find(shapes.symbols);
  shapes.instance = instance;
  if (fits()) return true;
  const size_t input = first_misfit(shapes), other = first_other_elements(shapes);
  shapes.instance.reset();
  if (input < count) refuse(input, shapes.inputs[input].dims, instance->inputs[input]);
  refuse_elements(other, shapes.elements[other], instance->input_elements[other]);
}

// Where an input has another number of them than expected its shape is another one, too: then none
// are read.
void Instances::take_elements(RunShapes& shapes, const ReadElements& read_elements) const {
  for (size_t i = 0; i < shapes.inputs.size(); ++i) {
    const ProgramInput& expected = program_.inputs[i];
    if (!expected.elements) continue;
    shapes.elements[i].clear();
    const auto wanted = static_cast<int64_t>(expected.elements->size());
    const auto& dims = shapes.inputs[i].dims;
    const int64_t count =
        std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
    if (count != wanted) continue;
    shapes.elements[i].resize(expected.elements->size());
    if (count > 0) read_elements(i, shapes.inputs[i].data, shapes.elements[i]);
  }
}

// The first input whose sizes are not the instance's; as many as there are inputs: all fit.
size_t Instances::first_misfit(const RunShapes& shapes) const {
  for (size_t i = 0; i < shapes.inputs.size(); ++i) {
    if (!program_.inputs[i].shape) continue;
    if (!std::ranges::equal(shapes.inputs[i].dims, shapes.instance->inputs[i])) return i;
  }
  return shapes.inputs.size();
}

// The first input whose elements are not the instance's.
size_t Instances::first_other_elements(const RunShapes& shapes) const {
  for (size_t i = 0; i < shapes.inputs.size(); ++i) {
    if (shapes.elements[i] != shapes.instance->input_elements[i]) return i;
  }
  return shapes.inputs.size();
}

void Instances::solve(RunShapes& shapes) const {
  for (size_t i = 0; i < shapes.inputs.size(); ++i) {
    const ProgramInput& expected = program_.inputs[i];
    const std::span<const int64_t> dims = shapes.inputs[i].dims;
    if (expected.shape && expected.shape->size() != dims.size()) refuse(i, dims);
    if (expected.elements && expected.elements->size() != shapes.elements[i].size()) {
      refuse(i, dims);
    }
  }
  const auto& sources = program_.binding.sources();
  for (size_t i = 0; i < sources.size(); ++i) {
    const SymbolBinding::Source& source = sources[i];
    const int64_t brought = source.kind == SymbolBinding::Source::Kind::kExtent
                                ? shapes.inputs[source.input].dims[source.index]
                                : shapes.elements[source.input][source.index];
    shapes.symbols[i] = (brought - source.summand) / source.factor;
    if (shapes.symbols[i] >= 0) continue;
    if (source.kind == SymbolBinding::Source::Kind::kElement) {
      refuse_elements(source.input, shapes.elements[source.input]);
    }
    refuse(source.input, shapes.inputs[source.input].dims);
  }
}

void Instances::refuse(size_t input, std::span<const int64_t> dims,
                       std::span<const int64_t> wanted) const {
  const ProgramInput& expected = program_.inputs[input];
  std::string message = fmt::format("input '{}' has shape [{}], but the model expects {}",
                                    expected.name, fmt::join(dims, ","), text(*expected.shape));
  if (!wanted.empty() && !is_static(*expected.shape)) {
    message +=
        fmt::format(", which by the sizes of the other inputs is [{}]", fmt::join(wanted, ","));
  }
  throw UserError(message);
}

void Instances::refuse_elements(size_t input, std::span<const int64_t> elements,
                                std::span<const int64_t> wanted) const {
  const ProgramInput& expected = program_.inputs[input];
  std::string message =
      fmt::format("input '{}' holds [{}], but the model expects {}", expected.name,
                  fmt::join(elements, ","), text(*expected.elements));
  if (!wanted.empty() && !is_static(*expected.elements)) {
    message += fmt::format(", which by the sizes of the inputs is [{}]", fmt::join(wanted, ","));
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
