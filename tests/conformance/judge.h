// Runs a fused graph through the kernels and compares with the float64 reference.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/reference/tensor.h"
#include "kernels/running/executable.h"
#include "tests/kernels/test_target.h"

namespace tenon::kernels {

using reference::ReferenceTensor;

Settings conformance_settings();
// With pipelines: on the GPU where that is the target, else interpreted with a GPU's tiles.
Settings pipelined_settings();
// To assemble only, for sm_90a.
Settings assembled_settings();

// Whether some kernel runs every node; the reason names the first that none does.
Support runs(const ir::Graph& fused, const Settings& settings);

// One Run with poisoned outputs and guard bytes behind them; a byte written past an output fails
// the current test.
std::vector<ReferenceTensor> run(Executable& executable, const ir::Graph& fused,
                                 const std::vector<ReferenceTensor>& inputs);

// How far element `index` of output `output` may be from the reference, rounding to the output's
// own type aside.
using Tolerance = std::function<double(size_t output, int64_t index, double expected)>;

// Empty when all agree. NaN and infinities must stand where the reference has them.
std::string disagreement(const std::vector<ReferenceTensor>& results,
                         const std::vector<ReferenceTensor>& expected, const Tolerance& tolerance);

// Half the distance between neighbouring values of a float type, relative to the value: 2^-24 for
// f32.
double unit_roundoff(DType dtype);

}  // namespace tenon::kernels
