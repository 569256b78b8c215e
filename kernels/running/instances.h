// From the shapes and sizes that a Run brings to the program's numbers for them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/running/program.h"
#include "kernels/running/shape_instance.h"

namespace tenon::kernels {

// One Run's inputs, and the instance that they had in the Run before.
struct RunShapes {
  std::vector<RunContext::Input> inputs;
  std::vector<std::vector<int64_t>> elements;  // of inputs whose elements are sizes; else none
  std::vector<int64_t> symbols;
  std::shared_ptr<const ShapeInstance> instance;
};

// Reads the elements of an input, the first of which is at `from`.
using ReadElements = std::function<void(size_t input, const void* from, std::span<int64_t> to)>;
// From memory of the host.
void load_elements(DType dtype, const void* from, std::span<int64_t> to);

class Instances {
 public:
  Instances(const Program& program, int threads) : program_(program), threads_(threads) {}

  RunShapes make_shapes() const;
  // The instance of every Run where the model leaves no size open; null elsewhere, and where its
  // sizes contradict each other, which a Run says.
  std::shared_ptr<const ShapeInstance> only();
  // Reads the inputs and makes `shapes.instance` fit them; true where it is another one than
  // before. Throws UserError where an input's shape contradicts the model, or sizes in it do.
  bool read(RunContext& context, RunShapes& shapes, const ReadElements& read_elements);

 private:
  void take_elements(RunShapes& shapes, const ReadElements& read_elements) const;
  size_t first_misfit(const RunShapes& shapes) const;
  size_t first_other_elements(const RunShapes& shapes) const;
  void solve(RunShapes& shapes) const;
  std::shared_ptr<const ShapeInstance> find(const std::vector<int64_t>& symbols);
  // `wanted`: what symbols make of the expected shape, once they have values.
  [[noreturn]] void refuse(size_t input, std::span<const int64_t> dims,
                           std::span<const int64_t> wanted = {}) const;
  [[noreturn]] void refuse_elements(size_t input, std::span<const int64_t> elements,
                                    std::span<const int64_t> wanted = {}) const;

  static constexpr size_t kKept = 64;
  const Program& program_;
  int threads_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const ShapeInstance>> kept_;  // most recent first
};

}  // namespace tenon::kernels
