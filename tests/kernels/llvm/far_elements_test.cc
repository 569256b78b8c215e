// Movement of tensors with more than 2^32 elements: the tasks of a launch that write around 2^31,
// 2^32 and the end, in memory that is there only where it was written.
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "codegen/compile.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/selector.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kTwo31 = int64_t{1} << 31, kTwo32 = int64_t{1} << 32;
// x is [kRows,64], or as many elements in another shape.
constexpr int64_t kRows = kTwo32 / 64 + 66, kElements = kRows * 64, kHeight = kRows / 4;
constexpr int64_t kFill = -1;

// Pages that nobody touches take no memory.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseMemory() {
    if (ok()) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

struct Mover {
  std::string name, node;  // "%y: i8[…] = Op(%x) {…}", and the constants it reads
  std::string x;           // its shape
  // Which element of x is element i of y; kFill: none.
  std::function<int64_t(int64_t i)> source;
};

std::string number(int64_t value) { return std::to_string(value); }

std::vector<Mover> movers() {
  const std::string rows = "[" + number(kRows) + ",64]";
  const std::string deep = "[1,4," + number(kHeight) + ",64]";
  const std::string wide = "[1,1," + number(2 * kHeight) + ",128]";
  return {
      {"tile", "%twice: i64[2] = Constant@13() {value_ints=[2,1]}\n%y: i8[*] = Tile@13(%x, %twice)",
       rows, [](int64_t i) { return i % kElements; }},
      {"concat", "%y: i8[*] = Concat@13(%x, %x) {axis=1}", rows,
       [](int64_t i) { return i / 128 * 64 + i % 64; }},
      {"pad", "%pads: i64[4] = Constant@13() {value_ints=[1,0,2,0]}\n%y: i8[*] = Pad@13(%x, %pads)",
       rows, [](int64_t i) { return i < 64 || i >= kElements + 64 ? kFill : i - 64; }},
      {"backwards",
       "%end: i64[1] = Constant@13() {value_ints=[-9223372036854775807]}\n"
       "%last: i64[1] = Constant@13() {value_ints=[-1]}\n"
       "%axis: i64[1] = Constant@13() {value_ints=[0]}\n"
       "%y: i8[*] = Slice@13(%x, %last, %end, %axis, %last)",
       rows, [](int64_t i) { return (kRows - 1 - i / 64) * 64 + i % 64; }},
      {"expand",
       "%to: i64[3] = Constant@13() {value_ints=[2," + number(kRows) +
           ",64]}\n%y: i8[*] = Expand@13(%x, %to)",
       rows, [](int64_t i) { return i % kElements; }},
      {"depth_to_space", "%y: i8[*] = DepthToSpace@13(%x) {blocksize=2}", deep,
       [](int64_t i) {
         const int64_t row = i / 128, column = i % 128, channel = row % 2 * 2 + column % 2;
         return (channel * kHeight + row / 2) * 64 + column / 2;
       }},
      {"space_to_depth", "%y: i8[*] = SpaceToDepth@13(%x) {blocksize=2}", wide,
       [](int64_t i) {
         const int64_t channel = i / (kHeight * 64), row = i / 64 % kHeight, column = i % 64;
         return (2 * row + channel / 2) * 128 + 2 * column + channel % 2;
       }},
  };
}

std::byte value_at(int64_t source) { return static_cast<std::byte>(1 + source * 7919 % 126); }

// Elements of y that are looked at.
std::vector<int64_t> places(int64_t elements) {
  std::vector<int64_t> result;
  for (const int64_t around : {int64_t{64}, kTwo31, kTwo32, elements - 64}) {
    for (int64_t i = around - 64; i < around + 64; ++i) result.push_back(i);
  }
  return result;
}

// Runs the nodes of a graph, but of each launch only the tasks around those places.
class FarRun {
 public:
  explicit FarRun(const Mover& mover)
      : graph_(fuse(ir::parse("graph far {\n  input %x: i8" + mover.x + "\n" + mover.node +
                              "\n  output %y\n}\n"))) {
    settings_.host = codegen::detect_host();
    x_ = room(graph_.find("x"));
    y_ = room(graph_.find("y"));
    elements_ = element_count(*graph_.value(graph_.find("y")).shape).value();
  }

  bool has_memory() const { return x_ != nullptr && y_ != nullptr; }
  int64_t elements() const { return elements_; }
  std::byte& x(int64_t i) { return x_[i]; }
  std::byte y(int64_t i) const { return y_[i]; }

  void run() {
    for (const ir::NodeId id : graph_.order()) run_node(graph_.node(id));
  }

 private:
  // A view lies where its input does.
  std::byte* room(ir::ValueId id) {
    const ir::Node* maker = graph_.producer(id);
    if (maker && maker->is("Reshape")) return room(maker->inputs[0]);
    auto& memory = rooms_[id];
    const ir::Value& value = graph_.value(id);
    if (!memory) {
      const int64_t count = element_count(*value.shape).value();
      memory =
          std::make_unique<SparseMemory>(static_cast<int64_t>(storage_bytes(value.dtype, count)));
    }
    return memory->ok() ? memory->data() : nullptr;
  }

  void run_node(const ir::Node& node) {
    if (node.is("Reshape")) return;
    const Choice choice = select(graph_, node, settings_);
    ASSERT_TRUE(choice.ok()) << choice.reason() << "\n" << ir::print(graph_);
    for (const Launch& launch : choice.lower().launches) run_launch(launch);
  }

  void run_launch(const Launch& launch) {
    std::vector<void*> buffers;
    for (const BufferArgument& argument : launch.buffers) {
      ASSERT_EQ(argument.kind, BufferArgument::Kind::kValue);
      const ir::Value& value = graph_.value(argument.id);
      buffers.push_back(value.is_constant() ? const_cast<std::byte*>(value.constant->data)
                                            : room(argument.id));
    }
    std::vector<int64_t> sizes;
    for (const Dim& dim : launch.indices) sizes.push_back(dim.value());
    const auto code = codegen::compile_host({{launch.kernel}}, settings_.host);
    const auto kernel = code->function(launch.kernel.name);
    const int64_t tasks = launch.tasks.value();
    for (const int64_t place : {int64_t{0}, kTwo31, kTwo32, elements_}) {
      constexpr int64_t kNear = 4;
      const auto share = static_cast<double>(place) / static_cast<double>(elements_);
      const auto task = static_cast<int64_t>(share * static_cast<double>(tasks));
      kernel(buffers.data(), sizes.data(), std::max<int64_t>(task - kNear, 0),
             std::min(task + kNear, tasks));
    }
  }

  ir::Graph graph_;
  Settings settings_;
  std::map<ir::ValueId, std::unique_ptr<SparseMemory>> rooms_;
  std::byte *x_ = nullptr, *y_ = nullptr;
  int64_t elements_ = 0;
};

class FarElements : public testing::TestWithParam<Mover> {};

TEST_P(FarElements, AreMovedToWhereTheyBelong) {
  FarRun far(GetParam());
  if (!far.has_memory()) GTEST_SKIP() << "the system lends no address space for " << kElements;
  ASSERT_GT(far.elements(), kTwo32);
  for (const int64_t i : places(far.elements())) {
    const int64_t source = GetParam().source(i);
    if (source != kFill) far.x(source) = value_at(source);
  }
  far.run();
  for (const int64_t i : places(far.elements())) {
    const int64_t source = GetParam().source(i);
    ASSERT_EQ(far.y(i), source == kFill ? std::byte{0} : value_at(source)) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, FarElements, testing::ValuesIn(movers()),
                         [](const auto& mover) { return mover.param.name; });

}  // namespace
}  // namespace tenon::kernels
