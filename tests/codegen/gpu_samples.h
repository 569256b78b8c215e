// Kernels as the GPU's emitter meets them, with buffers to run them on: assembled for every
// architecture, run on the host, and compared with a GPU where there is one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

struct SampleBuffer {
  DType dtype{};
  int64_t elements = 0;
  // Numbers are spread over [-range, range] (integers: [0, range)); 0 fills with zeros.
  double range = 4;
};

struct Sample {
  std::string name;
  Kernel kernel;
  int threads = 128;
  int64_t tasks = 1;
  std::vector<SampleBuffer> buffers;
  std::vector<int64_t> indices;
  double tolerance = 0;        // relative to the largest magnitude; 0: bit for bit
  bool representative = true;  // assembled for every architecture, without spills
  double ulps = 0;             // in units of each element's last place, where that is more
};

std::vector<Sample> representative_samples();
// Every operation on many shapes, element types and block sizes.
std::vector<Sample> operation_samples();

// Products that read rings, as a GPU's large tiles do: weights of 4 bits in the order of the matrix
// unit's operand, or both sides as they are.
std::vector<Sample> pipeline_samples();

// Contents for each buffer, the same for everyone who asks.
std::vector<std::vector<uint64_t>> sample_contents(const Sample& sample);

}  // namespace tenon::codegen
