// From the shapes that a Run brings to the program's numbers for them.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/running/program.h"
#include "kernels/running/shape_instance.h"

namespace tenon::kernels {

// One Run's inputs, and the instance that they had in the Run before.
struct RunShapes {
  std::vector<RunContext::Input> inputs;
  std::vector<int64_t> symbols;
  std::shared_ptr<const ShapeInstance> instance;
};

class Instances {
 public:
  Instances(const Program& program, int threads) : program_(program), threads_(threads) {}

  RunShapes make_shapes() const;
  // The instance of every Run where the model leaves no size open; null elsewhere, and where its
  // sizes contradict each other, which a Run says.
  std::shared_ptr<const ShapeInstance> only();
  // Reads the inputs and makes `shapes.instance` fit them; true where it is another one than
  // before. Throws UserError where an input's shape contradicts the model.
  bool read(RunContext& context, RunShapes& shapes);

 private:
  size_t first_misfit(const RunShapes& shapes) const;
  void solve(RunShapes& shapes) const;
  std::shared_ptr<const ShapeInstance> find(const std::vector<int64_t>& symbols);
  // `wanted`: what symbols make of the expected shape, once they have values.
  [[noreturn]] void refuse(size_t input, std::span<const int64_t> dims,
                           std::span<const int64_t> wanted = {}) const;

  static constexpr size_t kKept = 64;
  const Program& program_;
  int threads_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const ShapeInstance>> kept_;  // most recent first
};

}  // namespace tenon::kernels
