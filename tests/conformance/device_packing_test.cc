// Weights that kernels pack, on a GPU or run by the interpreter, against those that the host packs:
// the same bytes, for every form of weights and every way in which they share a buffer.
#include <algorithm>
#include <array>
#include <set>

#include <gtest/gtest.h>

#include "codegen/interpret.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/device/stream.h"
#include "kernels/llvm/scaled_dot/dot_sections.h"
#include "kernels/llvm/scaled_dot/packing_launches.h"
#include "kernels/running/device_weights.h"
#include "tests/conformance/scaled_dot_problem.h"
#include "tests/kernels/llvm/dot_parts.h"
#include "tests/kernels/test_target.h"

namespace tenon::kernels {
namespace {

using Bytes = std::vector<std::byte>;
using Kind = FragmentLayout::Side::Kind;

Bytes by_host(const PackedConstant& constant) {
  Bytes bytes(constant.bytes);
  constant.pack(0, bytes);
  return bytes;
}

// On the GPU of the tests, as a session does it.
Bytes by_device(const PackedConstant& constant, const DevicePacking& packing,
                const codegen::GpuTarget& target) {
  const auto device = device::Device::open(0);
  Program program(ir::parse("graph g {\n  input %x: f32[1]\n  output %x\n}"));
  Slot slot{Slot::Kind::kConstant, 0, {}, static_cast<int64_t>(constant.bytes), 0, 0, "w"};
  slot.on_device = packing;
  slot.pack = [](int64_t, std::span<std::byte>) { throw UserError("the host was to pack it"); };
  program.slots.push_back(std::move(slot));
  const DeviceWeights weights(device, program, {&target, nullptr});
  Bytes bytes(constant.bytes);
  device::Stream stream(device);
  stream.copy(reinterpret_cast<device::Address>(bytes.data()), weights.address(0), bytes.size());
  stream.synchronize();
  return bytes;
}

// Sources as long as they are, so that a sanitizer sees who reads past them.
Bytes by_kernels(const PackedConstant& constant, const DevicePacking& packing) {
  const Settings settings = test_settings();
  if (settings.gpu && !settings.emulate) return by_device(constant, packing, *settings.gpu);
  Bytes bytes(constant.bytes, std::byte{0xa5});
  for (const DevicePacking::Piece& piece : packing.pieces) {
    std::vector<Bytes> sources;
    std::vector<void*> buffers;
    for (const DevicePacking::Source& source : piece.sources) {
      sources.emplace_back(source.bytes.begin(), source.bytes.end());
      buffers.push_back(sources.back().data());
    }
    buffers.push_back(bytes.data() + piece.first_byte);
    codegen::interpret(*piece.kernel, buffers, piece.indices, 0, piece.tasks);
  }
  return bytes;
}

std::string first_difference(const Bytes& a, const Bytes& b) {
  if (a.size() != b.size()) return "different sizes";
  const auto [at, other] = std::ranges::mismatch(a, b);
  return at == a.end() ? "" : "byte " + std::to_string(at - a.begin());
}

// Codes of which none is NaN take any bits.
void fill_codes(ir::Graph& graph, std::mt19937& random) {
  for (size_t id = 0; id < graph.value_count(); ++id) {
    ir::Value& value = graph.value(static_cast<ir::ValueId>(id));
    const bool has_no_nan = is_integer(value.dtype) || value.dtype == DType::kF4E2M1;
    const bool is_weight = value.is_constant() && value.name.starts_with("b");
    if (!is_weight || !has_no_nan) continue;
    Bytes bytes(value.constant->bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    value.constant = ir::Tensor::copy(value.dtype, value.constant->dims, bytes);
  }
}

// Dots of one `a`; the second one takes the first one's result where they are a pair.
struct Dots {
  ir::Graph graph;
  std::vector<ir::Node> nodes;

  Dots(const DotProblem& problem, const std::vector<int64_t>& columns, unsigned seed,
       bool paired = false) {
    std::mt19937 random(seed);
    const ir::ValueId a = add_rows(graph, problem.activation, problem.size.k);
    for (const int64_t n : columns) {
      DotProblem own = problem;
      own.size.n = n;
      add_dot(graph, a, own, random);
    }
    fill_codes(graph, random);
    for (const ir::NodeId id : graph.order()) nodes.push_back(graph.node(id));
    if (!paired) return;
    ir::ScaledDot second = ir::ScaledDot::from(nodes[1]);
    second.extra = {nodes[0].output(0)};
    second.write_to(nodes[1]);
  }
};

class DevicePackingTest : public testing::Test {
 protected:
  // One buffer of units and, where they stand apart, one of sides; cut where it can be.
  void judge(const Dots& dots, Precision precision = Precision::kExact) {
    DotSections sections = plan_sections(dots.graph, dot_parts(dots.graph, dots.nodes), precision);
    if (!sections.support) return;
    const FragmentLayout& layout = sections.layout;
    kinds_.insert(layout.scale.kind);
    kinds_.insert(layout.zero.kind);
    apart_ += layout.sides_apart;
    Lowered lowered;
    const BufferArgument units = pack_sections(dots.graph, sections, lowered);
    judge(lowered.packed.at(static_cast<size_t>(units.id)),
          pack_units_on_device(dots.graph, sections, 1));
    if (!layout.sides_apart) return;
    judge(lowered.packed.at(static_cast<size_t>(sections.sides.id)),
          pack_sides_on_device(dots.graph, sections, 1));
  }

  void judge(const PackedConstant& constant, const DevicePacking& cut) {
    ASSERT_FALSE(constant.on_device.pieces.empty());
    const Bytes wanted = by_host(constant);
    EXPECT_EQ(first_difference(by_kernels(constant, constant.on_device), wanted), "");
    EXPECT_EQ(first_difference(by_kernels(constant, cut), wanted), "") << "in pieces";
    ++judged_;
  }

  std::set<Kind> kinds_;
  int apart_ = 0, judged_ = 0;
};

bool fits(const DotForm& form, const DotSize& size) {
  if (form.as_bytes && is_floating(form.element)) return size.k % 2 == 0;
  if (form.block == 0 || form.as_bytes) return true;
  return size.k % form.block == 0 || form.k_last;
}

constexpr std::array kActivations{DType::kF16, DType::kBF16, DType::kF32};

std::vector<DotForm> all_forms() {
  std::vector<DotForm> forms(dot_forms().begin(), dot_forms().end());
  // Zero points in floats that are codes; scales and zero points that both are codes.
  for (const DType element : {DType::kU4, DType::kU8}) {
    forms.push_back({.name = "whole_zero",
                     .element = element,
                     .scale = DType::kF32,
                     .block = 32,
                     .zero = DType::kF16,
                     .whole_zero = true});
    forms.push_back({.name = "exponents_and_zeros",
                     .element = element,
                     .scale = DType::kF8E8M0,
                     .block = 32,
                     .zero = element});
  }
  // Sides apart, stored the other way round.
  forms.push_back({.name = "large_k_major",
                   .element = DType::kI4,
                   .scale = DType::kF16,
                   .block = 128,
                   .zero = DType::kI4,
                   .k_last = false});
  forms.push_back({.name = "int8_block", .element = DType::kI8, .scale = DType::kF16, .block = 32});
  return forms;
}

TEST_F(DevicePackingTest, EveryForm) {
  unsigned seed = 1;
  for (const DotForm& given : all_forms()) {
    for (const DType activation : kActivations) {
      // Scales of the rows' type are packed as they are, others as f32.
      for (const bool same_type : {false, true}) {
        DotForm form = given;
        if (same_type && (!is_integer(form.element) || form.scale == DType::kF8E8M0)) continue;
        if (same_type) form.scale = activation;
        for (const DotSize size :
             {DotSize{130, 200}, DotSize{5, 33}, DotSize{257, 128}, DotSize{70, 256}}) {
          const DotProblem problem{form, activation, size};
          if (!fits(form, size)) continue;
          SCOPED_TRACE(describe(problem));
          judge(Dots(problem, {size.n}, seed++));
        }
      }
    }
  }
  EXPECT_GE(judged_, 300);
  EXPECT_GE(apart_, 10);
  for (const Kind kind :
       {Kind::kNibbles, Kind::kBytes, Kind::kHalves, Kind::kFloats, Kind::kColumn, Kind::kShared}) {
    EXPECT_TRUE(kinds_.contains(kind)) << static_cast<int>(kind);
  }
}

TEST_F(DevicePackingTest, WeightsThatShareABuffer) {
  unsigned seed = 1000;
  for (const DotForm& form : all_forms()) {
    for (const DType activation : kActivations) {
      const DotProblem problem{form, activation, {130, 128}};
      SCOPED_TRACE(describe(problem));
      judge(Dots(problem, {130, 64, 67}, seed++));
      judge(Dots(problem, {100, 100}, seed++, /*paired=*/true));
    }
  }
  EXPECT_GE(judged_, 150);
}

TEST_F(DevicePackingTest, Tf32) {
  for (const char* name : {"f32", "f32_transposed"}) {
    const DotForm form = *std::ranges::find(dot_forms(), name, &DotForm::name);
    judge(Dots({form, DType::kF32, {130, 72}}, {130}, 1), Precision::kTf32);
  }
  EXPECT_EQ(judged_, 2);
}

// Scales of two levels are packed as their rounded products.
TEST_F(DevicePackingTest, RoundedScales) {
  const DotForm form = *std::ranges::find(dot_forms(), "nvfp4", &DotForm::name);
  Dots dots({form, DType::kF16, {130, 128}}, {130}, 1);
  ir::ScaledDot dot = ir::ScaledDot::from(dots.nodes[0]);
  dot.scale_b.rounded = DType::kF16;
  dot.scale_b.factor = 0.37f;
  dot.write_to(dots.nodes[0]);
  judge(dots);
  EXPECT_EQ(judged_, 1);
}

TEST_F(DevicePackingTest, EveryBitOfASourceCounts) {
  std::mt19937 random(5);
  const DotForm form = *std::ranges::find(dot_forms(), "nvfp4", &DotForm::name);
  const Dots dots({form, DType::kF16, {130, 128}}, {130}, 1);
  DotSections sections = plan_sections(dots.graph, dot_parts(dots.graph, dots.nodes));
  Lowered lowered;
  const BufferArgument units = pack_sections(dots.graph, sections, lowered);
  const PackedConstant& constant = lowered.packed.at(static_cast<size_t>(units.id));
  const Bytes before = by_kernels(constant, constant.on_device);
  for (int i = 0; i < 32; ++i) {
    DevicePacking packing = constant.on_device;
    DevicePacking::Source& source = packing.pieces.at(0).sources.at(i % 2);  // codes, scales
    Bytes changed(source.bytes.begin(), source.bytes.end());
    const int bits = i % 2 == 0 ? 8 : 7;  // scales have no sign
    changed[random() % changed.size()] ^= static_cast<std::byte>(1 << random() % bits);
    source.bytes = changed;
    EXPECT_NE(first_difference(by_kernels(constant, packing), before), "") << i;
  }
}

// What differs between the layers of a model makes no other kernel.
TEST_F(DevicePackingTest, SizesShareAKernel) {
  const DotForm form = *std::ranges::find(dot_forms(), "nvfp4", &DotForm::name);
  std::set<std::shared_ptr<const codegen::Kernel>> kernels;
  for (const DotSize size : {DotSize{130, 128}, DotSize{512, 1024}}) {
    const Dots dots({form, DType::kF16, size}, {size.n}, 1);
    const DevicePacking packing = pack_units_on_device(
        dots.graph, plan_sections(dots.graph, dot_parts(dots.graph, dots.nodes)));
    kernels.insert(packing.pieces.at(0).kernel);
  }
  EXPECT_EQ(kernels.size(), 1u);
}

}  // namespace
}  // namespace tenon::kernels
