// When ranks ask for the memory that their collectives are faster on, on the stub: all of them
// would at the same points.
#include "kernels/running/collective_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/build_program.h"
#include "kernels/device/stream.h"
#include "kernels/planning/collectives.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::kernels {
namespace {

using device::Address;
using device::Buffer;
using ::testing::ElementsAre;

// Memory of the device, and a diary: what was asked for, and collectives between.
class NotedMemory final : public CollectiveMemory {
 public:
  explicit NotedMemory(std::shared_ptr<device::Device> device) : device_(std::move(device)) {}
  bool agree(const std::string& layout) override {
    diary.push_back("agree");
    layouts.push_back(layout);
    return agrees;
  }
  std::shared_ptr<void> make(size_t bytes) override {
    diary.push_back("make " + std::to_string(bytes));
    if (refuses) return nullptr;
    auto piece = std::make_shared<Buffer>(device_, bytes, "a test");
    begin = piece->address();
    end = begin + bytes;
    void* const data = reinterpret_cast<void*>(begin);
    return {std::move(piece), data};
  }
  bool holds(const void* memory) const {
    const auto address = reinterpret_cast<Address>(memory);
    return address >= begin && address < end;
  }

  bool agrees = true, refuses = false;
  std::vector<std::string> diary, layouts;
  Address begin = 0, end = 0;

 private:
  std::shared_ptr<device::Device> device_;
};

class Sum final : public LibraryCall {
 public:
  Sum(std::shared_ptr<device::Device> device, std::shared_ptr<NotedMemory> memory)
      : device_(std::move(device)), memory_(std::move(memory)) {}
  std::string name() const override { return "sum"; }
  bool is_collective() const override { return true; }
  void enqueue(void* stream, std::span<void* const> buffers,
               std::span<const int64_t> numbers) const override {
    const bool holds_both = memory_->holds(buffers[0]) && memory_->holds(buffers[1]);
    memory_->diary.push_back(holds_both ? "sum on it" : "sum");
    device::Stream(device_, static_cast<device::StreamHandle>(stream))
        .copy(reinterpret_cast<Address>(buffers[1]), reinterpret_cast<Address>(buffers[0]),
              static_cast<size_t>(numbers[0]) * 4);
  }

 private:
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<NotedMemory> memory_;
};

class Ranks final : public Collectives {
 public:
  Ranks(std::shared_ptr<device::Device> device, std::shared_ptr<NotedMemory> memory)
      : device_(std::move(device)), memory_(std::move(memory)) {}
  std::string engine() const override { return "test"; }
  int rank() const override { return 0; }
  int ranks() const override { return 2; }
  Support supports(const ir::Collective&, DType) const override { return Support::yes(); }
  std::shared_ptr<const LibraryCall> make_call(const ir::Collective&, DType) const override {
    return std::make_shared<const Sum>(device_, memory_);
  }

 private:
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<NotedMemory> memory_;
};

class OneInput final : public RunContext {
 public:
  OneInput(Address x, Address y, int64_t count) : x_(x), y_(y), dims_{count} {}
  Input input(size_t) override { return {reinterpret_cast<const void*>(x_), dims_}; }
  void* output(size_t, std::span<const int64_t>) override { return reinterpret_cast<void*>(y_); }
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}

 private:
  Address x_, y_;
  std::vector<int64_t> dims_;
};

// y = -(the sum over ranks of -x), for n elements: the sum is between two launches.
ir::Graph sum_between(const std::string& n) {
  const auto negate = [&](const std::string& to, const std::string& from) {
    return "  %" + to + ": f32[" + n + "] = tenon::Loop(%" + from + ") body {\n    input %u: f32[" +
           n + "]\n    %w: f32[" + n + "] = Neg(%u)\n    output %w\n  }\n";
  };
  return ir::parse("graph main {\n  input %x: f32[" + n + "]\n" + negate("a", "x") + "  %s: f32[" +
                   n + "] = tenon::AllReduce(%a) {ranks=2, reduction=\"sum\"}\n" +
                   negate("y", "s") + "  output %y\n}\n");
}

class CollectiveMemoryTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMost = 4096;

  Settings settings() const {
    Settings settings;
    settings.gpu = device_->description().target();
    settings.collectives = std::make_shared<const Ranks>(device_, memory_);
    return settings;
  }
  std::unique_ptr<Executable> build(const std::string& n, DeviceRunOptions options = {}) const {
    options.collective_memory = memory_;
    return build_on_device(sum_between(n), settings(), device_, options);
  }
  // What is noted since the last call, of a Run that is checked.
  std::vector<std::string> run(Executable& executable, int64_t count) {
    const std::vector<float> x(count, 3);
    std::vector<float> y(count, 7);
    device::Stream stream(device_);
    stream.copy(x_.address(), reinterpret_cast<Address>(x.data()), count * 4);
    stream.synchronize();
    OneInput context(x_.address(), y_.address(), count);
    executable.run(context);
    stream.copy(reinterpret_cast<Address>(y.data()), y_.address(), count * 4);
    stream.synchronize();
    EXPECT_EQ(y, x);
    return take_diary();
  }
  std::vector<std::string> take_diary() { return std::exchange(memory_->diary, {}); }

  test::StubDriver stub_;
  std::shared_ptr<device::Device> device_ = device::Device::open(0);
  std::shared_ptr<NotedMemory> memory_ = std::make_shared<NotedMemory>(device_);
  Buffer x_ = Buffer(device_, kMost * 4, "x"), y_ = Buffer(device_, kMost * 4, "y");
};

TEST_F(CollectiveMemoryTest, IsMadeInCompileWhereNoSizeIsOpen) {
  for (const bool graphs : {false, true}) {
    const auto executable = build("100", {.graphs = graphs});
    if (graphs) {
      EXPECT_THAT(take_diary(), ElementsAre("agree", "make 896", "sum on it"));  // into a graph
    } else {
      EXPECT_THAT(take_diary(), ElementsAre("agree", "make 896"));
      EXPECT_THAT(run(*executable, 100), ElementsAre("sum on it"));
    }
    for (int i = 0; i < 3; ++i) {
      for (const std::string& word : run(*executable, 100)) EXPECT_EQ(word, "sum on it");
    }
  }
}

TEST_F(CollectiveMemoryTest, GrowsBeforeTheFirstCollectiveOfARun) {
  const auto executable = build("n");
  EXPECT_THAT(take_diary(), ElementsAre("agree"));
  EXPECT_THAT(run(*executable, 100), ElementsAre("make 896", "sum on it"));
  EXPECT_THAT(run(*executable, 100), ElementsAre("sum on it"));
  EXPECT_THAT(run(*executable, 16), ElementsAre("sum on it"));
  EXPECT_THAT(run(*executable, kMost), ElementsAre("make 32768", "sum on it"));
  EXPECT_THAT(run(*executable, 100), ElementsAre("sum on it"));
  EXPECT_EQ(stub_.reports(), "");
}

TEST_F(CollectiveMemoryTest, IsNotMadeWhereRanksDiffer) {
  memory_->agrees = false;
  const auto executable = build("n");
  EXPECT_THAT(run(*executable, 100), ElementsAre("agree", "sum"));
  EXPECT_THAT(run(*executable, kMost), ElementsAre("sum"));
}

TEST_F(CollectiveMemoryTest, IsNotAskedForAgainOnceItWasRefused) {
  const auto executable = build("n");
  EXPECT_THAT(run(*executable, 16), ElementsAre("agree", "make 128", "sum on it"));
  memory_->refuses = true;
  EXPECT_THAT(run(*executable, 100), ElementsAre("make 896", "sum"));
  memory_->refuses = false;
  EXPECT_THAT(run(*executable, kMost), ElementsAre("sum"));
}

TEST_F(CollectiveMemoryTest, ProgramsWithoutCollectivesDoWithout) {
  DeviceRunOptions options;
  options.collective_memory = memory_;
  const ir::Graph graph = ir::parse(
      "graph main {\n  input %x: f32[8]\n  %y: f32[8] = tenon::Loop(%x) body {\n    input %u: "
      "f32[8]\n    %w: f32[8] = Abs(%u)\n    output %w\n  }\n  output %y\n}\n");
  const auto executable = build_on_device(graph, settings(), device_, options);
  EXPECT_THAT(run(*executable, 8), ElementsAre());
}

TEST_F(CollectiveMemoryTest, LayoutsTellWhatPlacesBuffersAndNothingElse) {
  const Program fixed = make_program(sum_between("100"), settings());
  EXPECT_TRUE(has_collectives(fixed));
  EXPECT_EQ(arena_layout(fixed), arena_layout(make_program(sum_between("100"), settings())));
  EXPECT_NE(arena_layout(fixed), arena_layout(make_program(sum_between("101"), settings())));
  Program changed = make_program(sum_between("100"), settings());
  changed.launches[1].node = "renamed";
  EXPECT_EQ(arena_layout(fixed), arena_layout(changed));
  std::swap(changed.launches[1].slots[0], changed.launches[1].slots[1]);
  EXPECT_NE(arena_layout(fixed), arena_layout(changed));
  Program longer = make_program(sum_between("100"), settings());
  longer.slots[longer.launches[1].slots[0]].last += 1;
  EXPECT_NE(arena_layout(fixed), arena_layout(longer));
}

}  // namespace
}  // namespace tenon::kernels
