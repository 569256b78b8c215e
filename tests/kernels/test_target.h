// Where the tests of kernels run them. TENON_TEST_TARGET chooses:
//   host      kernels made for the host (when nothing is said)
//   emulate   kernels made for a GPU, interpreted on the host
//   gpu       the first GPU of this machine, through the driver
// TENON_TEST_ARCH names another architecture to make kernels for; a GPU runs those of older ones.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/planning/candidate.h"
#include "kernels/running/executable.h"

namespace tenon::kernels {

Settings test_settings();
// Heads of attention that the target has shared memory for.
int64_t longest_heads();
std::unique_ptr<Executable> build_for_test(const ir::Graph& fused, const Settings& settings);

// Bytes where the kernels can reach them, with guard bytes behind.
class TestMemory {
 public:
  static constexpr size_t kGuard = 256;
  static constexpr std::byte kPoison{0xa5};

  static std::unique_ptr<TestMemory> holding(const std::vector<std::byte>& bytes);
  static std::unique_ptr<TestMemory> poisoned(size_t bytes);
  virtual ~TestMemory() = default;
  virtual void* data() = 0;
  // What lies there now, guard included.
  virtual std::vector<std::byte> read() = 0;
};

}  // namespace tenon::kernels
