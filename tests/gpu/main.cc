// The conformance cases on the first GPU of this machine; without one each is skipped with the
// reason. TENON_TEST_TARGET=host runs them on the machine's CPU instead.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/device/device.h"

namespace {

class NeedsGpu : public testing::Environment {
 public:
  void SetUp() override {
    if (std::string(std::getenv("TENON_TEST_TARGET")) != "gpu") return;
    if (!tenon::device::Device::list().empty()) return;
    const tenon::Support& support = tenon::device::driver().support;
    GTEST_SKIP() << (support ? std::string("the driver offers no GPU") : support.reason);
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  setenv("TENON_TEST_TARGET", "gpu", /*overwrite=*/0);
  testing::AddGlobalTestEnvironment(new NeedsGpu);
  return RUN_ALL_TESTS();
}
