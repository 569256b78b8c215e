// Writes a tile kernel and its launch side by side, so that parameters and arguments always pair.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "codegen/tile/builder.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

class LaunchWriter {
 public:
  explicit LaunchWriter(std::string kernel_name) : builder(std::move(kernel_name)) {}

  codegen::ValueId buffer(std::string name, DType dtype, BufferArgument argument) {
    launch_.buffers.push_back(argument);
    const bool constant = argument.kind == BufferArgument::Kind::kPacked;
    return builder.buffer(std::move(name), dtype, constant);
  }

  // Parameters come before everything else: each symbolic dim that the code will use is declared
  // first. A known dim needs no parameter.
  void declare(const Dim& dim) {
    if (dim.is_constant()) return;
    const auto [entry, fresh] = indices_.try_emplace(dim.text(), codegen::kNone);
    if (!fresh) return;
    entry->second = builder.index_parameter("d" + std::to_string(launch_.indices.size()));
    launch_.indices.push_back(dim);
  }

  // A known dim becomes a constant in the code, a declared one its parameter.
  codegen::ValueId index(const Dim& dim) {
    if (dim.is_constant()) return builder.index(dim.value());
    const auto declared = indices_.find(dim.text());
    if (declared == indices_.end()) throw InternalError("undeclared dim " + dim.text());
    return declared->second;
  }

  Launch finish(Dim tasks, Dim task_cost) {
    launch_.kernel = builder.finish();
    launch_.tasks = std::move(tasks);
    launch_.task_cost = std::move(task_cost);
    return std::move(launch_);
  }

  codegen::Builder builder;

 private:
  Launch launch_;
  std::map<std::string, codegen::ValueId> indices_;
};

}  // namespace tenon::kernels
