// Kernels for a real GPU, compiled where there is none: every form of dot, at the sizes of tiles
// that a device gets.
#include <gtest/gtest.h>

#include "kernels/device_executable.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

Settings real_gpu_settings() {
  Settings settings;
  settings.host = codegen::detect_host();
  settings.gpu = codegen::GpuTarget{};
  return settings;
}

TEST(GpuCompile, EveryFormOfDot) {
  unsigned seed = 1;
  for (const DotForm& form : dot_forms()) {
    for (const DType activation : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(std::string(form.name) + " " + std::string(name(activation)));
      std::mt19937 random(seed);
      const DotProblem problem{form, activation, {130, 256}, static_cast<DotEnd>(seed++ % 4), true};
      const ir::Graph graph = build_dot(problem, random);
      const Settings settings = real_gpu_settings();
      const Support support = runs(graph, settings);
      ASSERT_TRUE(support) << support.reason;
      EXPECT_NO_THROW(build_on_device(graph, settings, nullptr, {}));
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
