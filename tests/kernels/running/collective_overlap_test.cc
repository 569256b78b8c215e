// Collectives beside other launches: order, streams, events and memory, on the stub.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "graph_partitioner/ir/text.h"
#include "kernels/build_program.h"
#include "kernels/device/stream.h"
#include "kernels/planning/collectives.h"
#include "kernels/running/collective_order.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::kernels {
namespace {

using device::Address;
using device::Buffer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What one of two ranks would get if the other had nothing: a copy on the stream.
class SumWithNothing final : public LibraryCall {
 public:
  SumWithNothing(std::shared_ptr<device::Device> device, std::vector<int64_t> groups)
      : device_(std::move(device)), groups_(std::move(groups)) {}
  std::string name() const override { return "sum"; }
  bool is_collective() const override { return true; }
  std::span<const int64_t> groups() const override { return groups_; }
  void enqueue(void* stream, std::span<void* const> buffers,
               std::span<const int64_t> numbers) const override {
    if (fails) throw UserError("rank 1 is gone");
    streams.push_back(stream);
    device::Stream(device_, static_cast<device::StreamHandle>(stream))
        .copy(reinterpret_cast<Address>(buffers[1]), reinterpret_cast<Address>(buffers[0]),
              static_cast<size_t>(numbers[0]) * 4);
  }

  inline static std::vector<void*> streams;
  inline static bool fails = false;

 private:
  std::shared_ptr<device::Device> device_;
  std::vector<int64_t> groups_;
};

class Ranks final : public Collectives {
 public:
  Ranks(std::shared_ptr<device::Device> device, int ranks)
      : device_(std::move(device)), ranks_(ranks) {}
  std::string engine() const override { return "test"; }
  int rank() const override { return 0; }
  int ranks() const override { return ranks_; }
  Support supports(const ir::Collective&, DType) const override { return Support::yes(); }
  std::shared_ptr<const LibraryCall> make_call(const ir::Collective& collective,
                                               DType) const override {
    return std::make_shared<const SumWithNothing>(device_, collective.groups);
  }

 private:
  std::shared_ptr<device::Device> device_;
  int ranks_;
};

constexpr int64_t kCount = 5;

class OneInput final : public RunContext {
 public:
  OneInput(Address x, Address y, void* stream = nullptr, int64_t count = kCount)
      : x_(x), y_(y), stream_(stream), dims_{count} {}
  Input input(size_t) override { return {reinterpret_cast<const void*>(x_), dims_}; }
  void* output(size_t, std::span<const int64_t>) override { return reinterpret_cast<void*>(y_); }
  void* stream() override { return stream_; }
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}

 private:
  Address x_, y_;
  void* stream_;
  std::vector<int64_t> dims_;
};

std::string loop(const std::string& output, const std::string& inputs, const std::string& op) {
  const bool two = inputs.find(',') != std::string::npos;
  return "  %" + output + ": f32[n] = tenon::Loop(" + inputs + ") body {\n    input %u: f32[n]\n" +
         (two ? "    input %v: f32[n]\n" : "") + "    %w: f32[n] = " + op +
         (two ? "(%u, %v)" : "(%u)") + "\n    output %w\n  }\n";
}

// y = -x summed over ranks, and -(|x|), which needs nothing of the others.
std::string two_branches() {
  return "graph main {\n  input %x: f32[n]\n" + loop("b", "%x", "Abs") + loop("c", "%b", "Neg") +
         loop("a", "%x", "Neg") +
         "  %s: f32[n] = tenon::AllReduce(%a) {ranks=2, reduction=\"sum\"}\n" +
         loop("y", "%s, %c", "Add") + "  output %y\n}\n";
}

class CollectiveOverlapTest : public ::testing::Test {
 protected:
  CollectiveOverlapTest() {
    SumWithNothing::streams.clear();
    SumWithNothing::fails = false;
  }

  Settings settings(int ranks = 2) const {
    Settings settings;
    settings.gpu = device_->description().target();
    settings.collectives = std::make_shared<const Ranks>(device_, ranks);
    return settings;
  }
  static std::vector<std::string> nodes(const Program& program) {
    std::vector<std::string> names;
    for (const CompiledLaunch& launch : program.launches) names.push_back(launch.node);
    return names;
  }
  static size_t place(const Program& program, const std::string& node) {
    const std::vector<std::string> names = nodes(program);
    return static_cast<size_t>(std::ranges::find(names, node) - names.begin());
  }

  static Address address(const void* data) { return reinterpret_cast<Address>(data); }

  void run(Executable& executable) {
    OneInput context(x_.address(), y_.address());
    executable.run(context);
  }

  // -x - |x|, whatever runs beside what.
  void expect_right(Executable& executable) {
    const std::vector<float> x = {1, -2, 3, -4, 5};
    std::vector<float> y(kCount, 7);
    device::Stream stream(device_);
    stream.copy(x_.address(), address(x.data()), x_.bytes());
    stream.copy(y_.address(), address(y.data()), y_.bytes());
    stream.synchronize();
    run(executable);
    stream.copy(address(y.data()), y_.address(), y_.bytes());
    stream.synchronize();
    EXPECT_THAT(y, ElementsAre(-2, 0, -6, 0, -10));
  }

  test::StubDriver stub_;
  std::shared_ptr<device::Device> device_ = device::Device::open(0);
  Buffer x_ = Buffer(device_, kCount * 4, "x"), y_ = Buffer(device_, kCount * 4, "y");
  const ir::Graph graph_ = ir::parse(two_branches());
};

TEST_F(CollectiveOverlapTest, OtherWorkComesBehindTheBeginOfASum) {
  const Program program = make_program(graph_, settings());
  EXPECT_THAT(nodes(program), ElementsAre("a", "s", "b", "c", "y"));
  EXPECT_EQ(program.dependencies.launches()[1].joined, 4u);
  EXPECT_THAT(program.dependencies.text(program.slots), HasSubstr("after all, aside until 4"));
  EXPECT_THAT(program.fusions.at(1).note, HasSubstr("beside 'b', 'c'"));
  for (const size_t slot : program.launches[1].slots) EXPECT_GE(program.slots[slot].last, 3);
}

TEST_F(CollectiveOverlapTest, NothingChangesWhereItIsOffOrARankIsAlone) {
  Settings off = settings();
  off.collective_overlap = false;
  for (const Settings& one : {off, settings(1)}) {
    const Program program = make_program(graph_, one);
    EXPECT_THAT(nodes(program), ElementsAre("b", "c", "a", "s", "y"));
    for (const auto& launch : program.dependencies.launches()) EXPECT_EQ(launch.joined, 0u);
    EXPECT_EQ(program.fusions.at(3).note, "");
  }
}

TEST_F(CollectiveOverlapTest, RunsOnAnUrgentStreamOfItsOwn) {
  for (const bool lazy : {false, true}) {
    SumWithNothing::streams.clear();
    stub_.script(lazy ? "lazy" : "");
    const long before = stub_.calls("cuStreamCreateWithPriority");
    const auto executable = build_on_device(graph_, settings(), device_, {});
    for (int run = 0; run < 3; ++run) expect_right(*executable);
    EXPECT_EQ(stub_.calls("cuStreamCreateWithPriority") - before, 1);
    ASSERT_EQ(SumWithNothing::streams.size(), 3u);
    EXPECT_EQ(stub_.reports(), "");
  }
}

TEST_F(CollectiveOverlapTest, IsForkedAndJoinedInACapture) {
  const auto executable = build_on_device(graph_, settings(), device_, {.graphs = true});
  for (int run = 0; run < 4; ++run) expect_right(*executable);
  // Once by itself, once into a graph, which runs again.
  EXPECT_EQ(SumWithNothing::streams.size(), 2u);
  EXPECT_GE(stub_.calls("cuGraphLaunch"), 2);
  EXPECT_EQ(stub_.reports(), "");
}

// Runs of two shapes in turns on the caller's streams: how often the host waits for a graph.
TEST_F(CollectiveOverlapTest, GraphsThatDoNotMixAreWaitedFor) {
  const auto order = std::make_shared<CollectiveOrder>(device_, false);
  const DeviceRunOptions options{.graphs = true, .collective_order = order};
  const auto executable = build_on_device(graph_, settings(), device_, options);
  const auto other = build_on_device(graph_, settings(), device_, options);
  const device::Stream first(device_), second(device_);
  const auto waits_of = [&](Executable& one, const device::Stream& stream, int64_t count) {
    const long before = stub_.calls("cuEventSynchronize");
    OneInput context(x_.address(), y_.address(), stream.handle(), count);
    one.run(context);
    return stub_.calls("cuEventSynchronize") - before;
  };
  EXPECT_EQ(waits_of(*executable, first, kCount), 0);  // by themselves
  EXPECT_EQ(waits_of(*executable, first, kCount), 0);  // by a graph
  EXPECT_EQ(waits_of(*executable, first, kCount), 0);  // which comes again
  EXPECT_EQ(waits_of(*executable, first, 3), 1);       // another shape, by itself
  EXPECT_EQ(waits_of(*executable, first, kCount), 0);
  EXPECT_EQ(waits_of(*other, first, kCount), 1);  // all partitions have one order
  EXPECT_EQ(waits_of(*executable, first, kCount), 0);
  EXPECT_EQ(waits_of(*executable, second, kCount), 1);  // another stream
  EXPECT_EQ(waits_of(*executable, second, kCount), 0);
  EXPECT_EQ(stub_.reports(), "");
}

TEST_F(CollectiveOverlapTest, NobodyElseCapturesWhatDoesNotMix) {
  const auto order = std::make_shared<CollectiveOrder>(device_, false);
  const auto executable =
      build_on_device(graph_, settings(), device_, {.graphs = true, .collective_order = order});
  expect_right(*executable);
  device::Stream stream(device_);
  stream.begin_capture();
  OneInput context(x_.address(), y_.address(), stream.handle());
  EXPECT_THROW(executable->run(context), UserError);
  const device::Graph empty(device_, stream.end_capture());
  expect_right(*executable);
}

TEST_F(CollectiveOverlapTest, IsOnTheRunsStreamWhereItIsOff) {
  Settings off = settings();
  off.collective_overlap = false;
  const auto executable = build_on_device(graph_, off, device_, {});
  expect_right(*executable);
  EXPECT_EQ(stub_.calls("cuStreamCreateWithPriority"), 0);
}

TEST_F(CollectiveOverlapTest, ARankThatIsGoneFailsTheRunAndNoOther) {
  for (const bool graphs : {false, true}) {
    const auto executable = build_on_device(graph_, settings(), device_, {.graphs = graphs});
    expect_right(*executable);
    SumWithNothing::fails = true;
    EXPECT_THROW(run(*executable), UserError);
    EXPECT_EQ(stub_.take_reports(), "");
    EXPECT_EQ(device_->driver().synchronize(), device::kSuccess);
    SumWithNothing::fails = false;
    expect_right(*executable);
  }
}

TEST_F(CollectiveOverlapTest, TouchingMemoryOfOneThatRunsIsRefused) {
  Program program = make_program(graph_, settings());
  EXPECT_TRUE(program.dependencies.verify(program.slots));
  program.dependencies.launches()[1].joined = 5;
  EXPECT_THAT(program.dependencies.verify(program.slots).reason, HasSubstr("launch 4 ("));
  program.dependencies.launches()[1].joined = 6;
  EXPECT_THAT(program.dependencies.verify(program.slots).reason, HasSubstr("is joined at 6"));
  // The sum's operand lives no longer than who else reads it: b could get its memory.
  program.dependencies.launches()[1].joined = 4;
  for (const size_t slot : program.launches[1].slots) program.slots[slot].last = 1;
  EXPECT_THAT(program.dependencies.verify(program.slots).reason,
              HasSubstr("runs aside until launch 4"));
}

// Two sums side by side, of groups that share two ranks or not.
TEST_F(CollectiveOverlapTest, TwoRanksAreNeverInTwoCollectivesAtATime) {
  const std::string text = "graph main {\n  input %x: f32[n]\n" + loop("a", "%x", "Neg") +
                           "  %s: f32[n] = tenon::AllReduce(%a) {ranks=2, reduction=\"sum\"}\n" +
                           loop("b", "%x", "Abs") + loop("c", "%b", "Neg") +
                           "  %t: f32[n] = tenon::AllReduce(%c) {ranks=2, reduction=\"sum\"}\n" +
                           loop("y", "%s, %t", "Add") + "  output %y\n}\n";
  Program program = make_program(ir::parse(text), settings());
  const size_t s = place(program, "s"), t = place(program, "t");
  ASSERT_LT(s, t);
  LaunchDependencies& dependencies = program.dependencies;
  EXPECT_EQ(dependencies.launches()[t].joined, 0u);  // nothing is left to run beside it
  EXPECT_EQ(dependencies.launches()[s].joined, t);
  dependencies.launches()[s].joined = t + 1;
  for (const size_t slot : program.launches[s].slots) program.slots[slot].last = 9;
  EXPECT_THAT(dependencies.verify(program.slots).reason,
              HasSubstr("they could wait for each other"));
  dependencies.launches()[s].groups = {0, 1, -1, 2, 3};
  dependencies.launches()[t].groups = {0, 2, -1, 1, 3};
  EXPECT_TRUE(dependencies.verify(program.slots)) << dependencies.verify(program.slots).reason;
}

TEST(Groups, ShareTwoRanks) {
  using Groups = std::vector<int64_t>;
  const Groups pairs = {0, 1, -1, 2, 3}, across = {0, 2, -1, 1, 3},
               alone = {0, -1, 1, -1, 2, -1, 3};
  EXPECT_TRUE(ir::share_two_ranks({}, {}));
  EXPECT_TRUE(ir::share_two_ranks(pairs, {}));
  EXPECT_TRUE(ir::share_two_ranks({}, across));
  EXPECT_TRUE(ir::share_two_ranks(pairs, pairs));
  EXPECT_TRUE(ir::share_two_ranks(pairs, Groups{3, 2, 1, 0}));
  EXPECT_FALSE(ir::share_two_ranks(pairs, across));
  EXPECT_FALSE(ir::share_two_ranks(pairs, alone));
  EXPECT_FALSE(ir::share_two_ranks(alone, {}));
}

}  // namespace
}  // namespace tenon::kernels
