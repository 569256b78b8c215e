// The stub driver as tests see it: its control functions, small kernels for it, and a way to run a
// case in a process of its own where the state of a process is the matter.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "codegen/compile.h"
#include "kernels/device/device.h"

namespace tenon::test {

// Resets the stub when made, and holds it to having found nothing wrong when it goes.
class StubDriver {
 public:
  explicit StubDriver(const std::string& script = "");
  ~StubDriver();
  void script(const std::string& commands);
  std::string problem(const std::string& commands);  // with a script that is not understood
  std::string reports() const;
  std::string take_reports();  // and forgets them: the test expected them
  std::string leaks() const;
  long calls(const std::string& function = "") const;
};

// y[i] = x[i] + 1 for i in [0, n), 64 elements a task: parameters x, y, n.
codegen::GpuCode add_one_code(const std::string& name = "add_one");
inline constexpr int64_t kAddOneTile = 64;
// The same tile program with the arguments' count and order changed: parameters x, n.
codegen::GpuCode double_in_place_code();

// y = x, a matrix [rows, 32] of f32, loaded through TMA in boxes of 4 rows, one a task: parameters
// x, y, rows, and a TMA descriptor of x. Launched by PDL.
codegen::GpuCode tma_copy_code(const std::string& name = "tma_copy");
inline constexpr int64_t kBoxRows = 4, kBoxColumns = 32;
// PTX as far as the stub reads it: a tile program and the declarations of its parameters.
std::string ptx_around(const std::string& program, const std::string& declarations);

// Exit status of the disabled case `suite.DISABLED_name`, run by this program anew with a changed
// environment; -1: it did not end within 20 seconds, or crashed.
int run_alone(const std::string& test, const std::map<std::string, std::string>& environment = {});

std::string stub_driver_path();

}  // namespace tenon::test
