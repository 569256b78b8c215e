// The stub runs launches that overlap in orders that a GPU permits: what a kernel reads too soon is
// then what lay there before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/stream.h"
#include "tests/kernels/device/pdl_kernels.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::device {
namespace {

using test::add_one_kernel;
using test::fetching_kernel;
using test::kVector;
using test::StubDriver;
using ::testing::HasSubstr;

class LaunchOrderTest : public ::testing::Test {
 protected:
  LaunchOrderTest() : device_(Device::open(0)), stream_(device_) {
    for (Buffer* buffer : {&x_, &w_, &a_, &b_, &y_}) *buffer = vector_of(0);
  }

  Buffer vector_of(float value) {
    Buffer buffer(device_, kVector * sizeof(float), "a vector");
    std::fill_n(reinterpret_cast<float*>(buffer.address()), kVector, value);
    return buffer;
  }

  const LoadedKernel& load(const codegen::Kernel& kernel) {
    std::shared_ptr<const LoadedKernel>& loaded = loaded_[codegen::print(kernel)];
    if (loaded != nullptr) return *loaded;
    loaded = device_->load(codegen::compile_gpu(kernel, 64, device_->description().target()));
    return *loaded;
  }

  void launch(const codegen::Kernel& kernel, std::initializer_list<const Buffer*> buffers) {
    std::vector<uint64_t> arguments;
    for (const Buffer* buffer : buffers) arguments.push_back(buffer->address());
    stream_.launch(load(kernel), 1, arguments, {}, {.after_all = after_all_});
    after_all_ = !load(kernel).pdl;
  }

  static constexpr float kNothing = -1;  // poison: it was read too soon
  // What y, a result of launches that `enqueue` enqueues, holds after each of many orders.
  std::set<float> results(const std::function<void()>& enqueue) {
    std::set<float> seen;
    for (unsigned seed = 0; seed < 16; ++seed) {
      stub_.script("order " + std::to_string(seed));
      for (Buffer* buffer : {&a_, &b_, &y_}) stream_.fill(buffer->address(), 0, buffer->bytes());
      after_all_ = true;
      enqueue();
      stream_.synchronize();
      const auto* y = reinterpret_cast<const float*>(y_.address());
      for (const float value : std::span(y, kVector)) {
        seen.insert(std::isnan(value) ? kNothing : value);
      }
    }
    return seen;
  }

  StubDriver stub_;
  std::shared_ptr<Device> device_;
  Stream stream_;
  Buffer x_, w_, a_, b_, y_;
  bool after_all_ = true;
  std::map<std::string, std::shared_ptr<const LoadedKernel>> loaded_;  // by text
};

TEST_F(LaunchOrderTest, WhoWaitsSeesWhatWasWritten) {
  EXPECT_EQ(results([&] {
              launch(add_one_kernel(true), {&x_, &a_});
              launch(add_one_kernel(true), {&a_, &b_});
              launch(fetching_kernel(""), {&b_, &w_, &y_});
            }),
            std::set<float>{2});
  EXPECT_GT(stub_.calls("cuLaunchKernelEx"), 0);
}

// The same launches, but that the last believes its operand to be there.
TEST_F(LaunchOrderTest, WhoDoesNotWaitSeesWhatLayThereBefore) {
  const auto enqueue = [&] {
    launch(add_one_kernel(true), {&x_, &a_});
    launch(add_one_kernel(true), {&a_, &b_});
    launch(fetching_kernel("constant"), {&b_, &w_, &y_});
  };
  EXPECT_EQ(results(enqueue), (std::set<float>{kNothing, 0, 2}));  // in time by chance
  stub_.take_reports();
  after_all_ = true;
  enqueue();  // in order
  stream_.synchronize();
  EXPECT_EQ(*reinterpret_cast<const float*>(y_.address()), 2);
}

TEST_F(LaunchOrderTest, BehindALaunchThatLetsNobodyBeginEverythingIsThere) {
  EXPECT_EQ(results([&] {
              launch(add_one_kernel(true), {&x_, &a_});
              launch(add_one_kernel(false), {&a_, &b_});
              launch(fetching_kernel("constant"), {&b_, &w_, &y_});
            }),
            std::set<float>{2});
}

// Nobody in the second launch waits: its end says nothing of the first.
TEST_F(LaunchOrderTest, ALaunchThatNeverWaitsEndsBeforeThoseBeforeIt) {
  const Buffer own = vector_of(0);
  EXPECT_EQ(results([&] {
              launch(add_one_kernel(true), {&x_, &a_});
              launch(fetching_kernel("constant", "own"), {&x_, &w_, &own});
              launch(add_one_kernel(true), {&a_, &y_});
            }),
            (std::set<float>{kNothing, 1, 2}));
}

TEST_F(LaunchOrderTest, AWriteBeforeTheWaitToWhatOthersReadIsReported) {
  results([&] {
    launch(add_one_kernel(true), {&x_, &a_});
    launch(fetching_kernel("constant", "own"), {&w_, &w_, &x_});
  });
  EXPECT_THAT(stub_.take_reports(), HasSubstr("kernel 'fetch' writes, before its wait, what kernel "
                                              "'add_one' touches, which may still run"));
}

// A captured graph keeps how launches overlap.
TEST_F(LaunchOrderTest, GraphsOverlapLikeStreams) {
  const codegen::Kernel first = add_one_kernel(true), second = fetching_kernel("constant");
  load(first), load(second);  // not while capturing
  EXPECT_EQ(results([&] {
              stream_.begin_capture();
              launch(first, {&x_, &a_});
              launch(second, {&a_, &w_, &y_});
              const Graph graph(device_, stream_.end_capture());
              stream_.launch(graph);
              stream_.synchronize();
            }),
            (std::set<float>{kNothing, 0, 1}));
}

}  // namespace
}  // namespace tenon::device
