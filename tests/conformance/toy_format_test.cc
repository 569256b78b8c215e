// docs/adding_a_format.md, proven: a number format that Tenon does not have, written down as one
// FormatRule, goes through packing and the pipelined kernel. Packed words are then damaged bit by
// bit, and exactly the element that the documented order names changes.
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "base/convert.h"
#include "codegen/interpret.h"
#include "kernels/llvm/scaled_dot/pipelined_dot.h"
#include "tests/conformance/scaled_dot_problem.h"
#include "tests/kernels/llvm/dot_parts.h"

namespace tenon::kernels {
namespace {

using Bytes = std::vector<std::byte>;

// Sign and magnitude: codes 0 to 7 are these integers, 8 to 15 the same ones below zero. With its
// three bits at 8 to 10 of an f16 (two of the mantissa, one of the exponent) a code is the integer
// times 2^-16, because the first exponent only goes on where subnormal numbers end. `codes` names a
// type of as many bits that a model can hold.
FormatRule sign_magnitude() {
  FormatRule rule;
  rule.codes = DType::kF4E2M1;
  rule.operand = DType::kF16;
  rule.bits = 4;
  rule.field = {8, 9, 10, 15};
  rule.pairs = {{{{0, 0x8700}}},
                {{{8, 0x8700}}},
                {{{1, 0x8000}, {-3, 0x0700}}},
                {{{9, 0x8000}, {5, 0x0700}}}};
  rule.exponent = -16;
  rule.lowest = 0;
  rule.highest = 3;
  return rule;
}

double toy_number(uint64_t code) {
  const auto magnitude = static_cast<double>(code & 7);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// A product whose 4-bit codes, blocks of 16 with e4m3 scales, are read as the toy format.
class ToyProduct {
 public:
  ToyProduct(DotSize size, int64_t rows, DotEnd end, const GemmConfig& config,
             const std::shared_ptr<const ir::Graph>& body = nullptr)
      : size_(size), rows_(rows), graph_(build(size, rows, end)), element_(sign_magnitude()) {
    graph_.node(graph_.order().front()).body = body;
    const ir::Node& node = graph_.node(graph_.order().front());
    DotSections dots = plan_sections(graph_, dot_parts(graph_, {&node, 1}));
    EXPECT_TRUE(dots.support) << dots.support.reason;
    for (FragmentLayout* layout : {&dots.layout, &dots.sections[0].parts[0].layout}) {
      layout->element = &element_;
      layout->exponent = element_.exponent;
    }
    problem_ = dots.first().problem;
    layout_ = dots.layout;
    const PipelinedDot dot{graph_, dots, pack_sections(graph_, dots, lowered_), 3};
    launch_ = dot.emit(config, Dim(rows), lowered_);
    const PackedConstant& units = lowered_.packed.at(0);
    packed_.resize(units.bytes);
    units.pack(0, packed_);
  }

  std::vector<double> run(const std::vector<double>& x, Bytes packed) const {
    std::map<int32_t, Bytes> values, scratch, counters;
    values[graph_.inputs()[0]] = encoded(x);
    values[graph_.outputs()[0]].resize(static_cast<size_t>(rows_ * size_.n) * 2);
    std::vector<void*> buffers;
    for (const BufferArgument& argument : launch_.buffers) {
      buffers.push_back(place(argument, values, scratch, counters, packed));
    }
    EXPECT_TRUE(launch_.indices.empty()) << "all sizes are known";
    codegen::interpret(launch_.kernel, buffers, {}, 0, launch_.tasks.value());
    return decoded(values[graph_.outputs()[0]]);
  }

  // In float64; the bias, where there is one, as the model has it.
  std::vector<double> expected(const std::vector<double>& x) const {
    std::vector<double> y;
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t n = 0; n < size_.n; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < size_.k; ++k) sum += x[row * size_.k + k] * weight(n, k);
        y.push_back(sum + (problem_.dot.bias != ir::kNoValue ? number(problem_.dot.bias, n) : 0));
      }
    }
    return y;
  }

  uint64_t code(int64_t n, int64_t k) const { return raw(problem_.dot.b, n * size_.k + k); }
  double scale(int64_t n, int64_t k) const {
    return number(problem_.dot.scale_b.scale, n * ((size_.k + 15) / 16) + k / 16);
  }
  double weight(int64_t n, int64_t k) const { return toy_number(code(n, k)) * scale(n, k); }

  const FragmentLayout& layout() const { return layout_; }
  const Bytes& packed() const { return packed_; }

 private:
  static ir::Graph build(DotSize size, int64_t rows, DotEnd end) {
    std::mt19937 random(11);
    DotProblem problem{
        {.name = "toy", .element = DType::kF4E2M1, .scale = DType::kF8E4M3FN, .block = 16},
        DType::kF16,
        size,
        end};
    return build_dot(problem, random, rows);
  }

  uint64_t raw(ir::ValueId id, int64_t index) const {
    const ir::Tensor& tensor = *graph_.value(id).constant;
    return load_code(tensor.dtype, tensor.data, index);
  }
  double number(ir::ValueId id, int64_t index) const {
    return decode(graph_.value(id).dtype, raw(id, index));
  }

  static Bytes encoded(const std::vector<double>& numbers) {
    Bytes bytes(numbers.size() * 2);
    for (size_t i = 0; i < numbers.size(); ++i) {
      store_element(DType::kF16, bytes.data(), static_cast<int64_t>(i), numbers[i]);
    }
    return bytes;
  }
  static std::vector<double> decoded(const Bytes& bytes) {
    std::vector<double> numbers;
    for (size_t i = 0; i < bytes.size() / 2; ++i) {
      numbers.push_back(
          decode(DType::kF16, load_code(DType::kF16, bytes.data(), static_cast<int64_t>(i))));
    }
    return numbers;
  }

  void* place(const BufferArgument& argument, std::map<int32_t, Bytes>& values,
              std::map<int32_t, Bytes>& scratch, std::map<int32_t, Bytes>& counters,
              Bytes& packed) const {
    switch (argument.kind) {
      case BufferArgument::Kind::kValue:
        if (const auto found = values.find(argument.id); found != values.end()) {
          return found->second.data();
        }
        return const_cast<std::byte*>(graph_.value(argument.id).constant->data);
      case BufferArgument::Kind::kPacked:
        return packed.data();
      case BufferArgument::Kind::kScratch:
        scratch[argument.id].resize(
            static_cast<size_t>(lowered_.scratch[argument.id].bytes.value()));
        return scratch[argument.id].data();
      case BufferArgument::Kind::kCounters:
        counters[argument.id].resize(static_cast<size_t>(lowered_.counters[argument.id].value()) *
                                     sizeof(int32_t));
        return counters[argument.id].data();
    }
    return nullptr;
  }

  DotSize size_;
  int64_t rows_;
  ir::Graph graph_;
  FormatRule element_;
  ScaledDotProblem problem_;
  FragmentLayout layout_;
  Lowered lowered_;
  Launch launch_;
  Bytes packed_;
};

std::vector<double> random_rows(int64_t rows, int64_t k) {
  std::mt19937 random(5);
  std::vector<double> x;
  for (int64_t i = 0; i < rows * k; ++i) {
    x.push_back(std::ldexp(static_cast<double>(random() % 2048), -10) - 1);
  }
  return x;
}

TEST(ToyFormat, MultipliesLikeFloat64) {
  struct Case {
    DotSize size;
    int64_t rows;
    DotEnd end;
    GemmConfig config;
  };
  const std::vector<Case> cases = {
      {{128, 64}, 8, DotEnd::kPlain, {.tile_n = 8, .units = 1, .stages = 2}},
      {{130, 264}, 11, DotEnd::kBias, {.tile_n = 16, .units = 1, .stages = 3}},
      {{60, 512}, 5, DotEnd::kBias, {.tile_n = 8, .units = 2, .stages = 3, .split_k = 2}},
  };
  for (const Case& c : cases) {
    const ToyProduct product(c.size, c.rows, c.end, c.config);
    const std::vector<double> x = random_rows(c.rows, c.size.k);
    const std::vector<double> expected = product.expected(x), y = product.run(x, product.packed());
    for (size_t i = 0; i < y.size(); ++i) {
      // Sums are f32, rounded once to f16.
      const double tolerance = std::ldexp(std::fabs(expected[i]) + 1, -11) + 1e-3;
      ASSERT_NEAR(y[i], expected[i], tolerance) << c.size.n << "x" << c.size.k << " at " << i;
    }
  }
}

// x * tanh(|x|), of primitives: what a row of decompose/activations.cc would make of a new op.
std::shared_ptr<const ir::Graph> toy_activation(const Shape& shape) {
  auto body = std::make_shared<ir::Graph>();
  const auto value = [&](const char* name) {
    ir::Value made;
    made.name = name;
    made.dtype = DType::kF16;
    made.shape = shape;
    return made;
  };
  const auto apply = [&](const char* op, std::vector<ir::ValueId> inputs) {
    ir::Node node;
    node.op = op;
    node.inputs = std::move(inputs);
    node.outputs = {body->add_value(value(op))};
    const ir::ValueId out = node.outputs[0];
    body->add_node(std::move(node));
    return out;
  };
  const ir::ValueId x = body->add_input(value("x"));
  body->add_output(apply("Mul", {x, apply("Tanh", {apply("Abs", {x})})}));
  return body;
}

TEST(ToyFormat, TakesAnActivationThatNobodyWroteAKernelFor) {
  constexpr DotSize kSize{128, 128};
  const ToyProduct product(kSize, 8, DotEnd::kBias, {.tile_n = 8, .units = 1, .stages = 2},
                           toy_activation(Shape{8, kSize.n}));
  const std::vector<double> x = random_rows(8, kSize.k);
  const std::vector<double> sums = product.expected(x), y = product.run(x, product.packed());
  for (size_t i = 0; i < y.size(); ++i) {
    const double expected = sums[i] * std::tanh(std::fabs(sums[i]));
    ASSERT_NEAR(y[i], expected, std::ldexp(std::fabs(expected) + 1, -9)) << i;
  }
}

// Which element a bit of a unit's codes belongs to, from the order that fragment_weight.h writes
// down and the rule's moves.
struct Element {
  int64_t n, k;
  int code_bit;
};
Element element_of_bit(const FormatRule& rule, int word, int bit) {
  const int thread = word / 4, q = word % 4, h = bit / 16;
  for (int pair = 0; pair < 4; ++pair) {
    const PairRule& moves = rule.pairs[static_cast<size_t>(pair)];
    for (int code_bit = 0; code_bit < rule.bits; ++code_bit) {
      const int target = rule.field[static_cast<size_t>(code_bit)];
      for (const BitMove& move : moves.moves) {
        if ((move.mask >> target & 1) == 0 || target - move.shift != bit % 16) continue;
        const int row = thread / 128 * 64 + thread / 32 % 4 * 16 + pair % 2 * 8 + thread / 4 % 8;
        return {row, 16 * q + pair / 2 * 8 + thread % 4 * 2 + h, code_bit};
      }
    }
  }
  ADD_FAILURE() << "bit " << bit << " of a word belongs to no code";
  return {};
}

// Rows of ones apart: row t is 1 where k % 8 == t, so that an element meets one row only.
TEST(ToyFormat, OneDamagedBitChangesOneNumber) {
  constexpr DotSize kSize{100, 104};
  constexpr int64_t kRows = 8;
  const ToyProduct product(kSize, kRows, DotEnd::kPlain, {.tile_n = 8, .units = 1, .stages = 2});
  std::vector<double> x(kRows * kSize.k);
  for (int64_t k = 0; k < kSize.k; ++k) x[k % kRows * kSize.k + k] = 1;
  const std::vector<double> whole = product.run(x, product.packed());
  const FragmentLayout& layout = product.layout();

  std::mt19937 random(3);
  int changed = 0, padding = 0;
  for (int trial = 0; trial < 48; ++trial) {
    const auto step = static_cast<int64_t>(random() % layout.steps());
    const int word = static_cast<int>(random() % layout.code_words());
    const int bit = static_cast<int>(random() % 32);
    Bytes damaged = product.packed();
    auto* words = reinterpret_cast<uint32_t*>(damaged.data());
    words[step * layout.unit_words() + word] ^= 1u << bit;
    const std::vector<double> y = product.run(x, std::move(damaged));

    const Element element = element_of_bit(*layout.element, word, bit);
    const int64_t n = element.n, k = step * kFragmentDepth + element.k;
    std::vector<double> expected = whole;
    if (n < kSize.n && k < kSize.k) {
      const uint64_t code = product.code(n, k);
      const double change = toy_number(code ^ 1u << element.code_bit) - toy_number(code);
      const int64_t at = k % kRows * kSize.n + n;
      expected[at] =
          decode(DType::kF16, encode(DType::kF16, whole[at] + change * product.scale(n, k)));
      changed += change != 0 ? 1 : 0;  // the sign of a zero changes nothing
    } else {
      ++padding;
    }
    ASSERT_EQ(y, expected) << "word " << word << " bit " << bit << " of step " << step;
  }
  EXPECT_GT(changed, 20);
  EXPECT_GT(padding, 0);
}

}  // namespace
}  // namespace tenon::kernels
