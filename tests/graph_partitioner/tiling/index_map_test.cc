#include "graph_partitioner/tiling/index_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"
#include "graph_partitioner/ir/primitives.h"
#include "tests/graph_partitioner/equivalence.h"

namespace tenon::tiling {
namespace {

using testing::ReferenceTensor;

int64_t number(const Dim& dim) {
  return dim.evaluate([](std::string_view) -> int64_t { throw InternalError("no symbols here"); });
}

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0); }

int64_t element(const Dim& offset, const std::vector<Dim>& strides,
                const std::vector<BlockTerm>& blocks, const std::vector<int64_t>& x) {
  int64_t at = number(offset);
  for (size_t axis = 0; axis < x.size(); ++axis) at += number(strides[axis]) * x[axis];
  for (const BlockTerm& term : blocks) {
    at += number(term.stride) *
          floor_divide(number(term.step) * x[term.axis] + number(term.offset), term.divisor);
  }
  return at;
}

// Reads through the access as a kernel would.
double read(const Access& access, const std::map<ir::ValueId, ReferenceTensor>& values,
            const std::vector<int64_t>& x) {
  for (const Guard& guard : access.guards) {
    for (const Bound& bound : guard.bounds) {
      const int64_t index = number(bound.step) * x[bound.axis] + number(bound.offset);
      if (index < 0 || index >= number(bound.size)) return values.at(guard.fill).number(0);
    }
  }
  int64_t at = element(access.offset, access.strides, access.blocks, x);
  for (const GatherTerm& term : access.gathers) {
    const ReferenceTensor& indices = values.at(term.indices);
    int64_t index = static_cast<int64_t>(
        indices.number(element(term.indices_offset, term.indices_strides, term.indices_blocks, x)));
    if (index < 0) index += number(term.bound);
    at += number(term.stride) *
          floor_divide(number(term.step) * index + number(term.offset), term.divisor);
  }
  return values.at(access.input).number(at);
}

// Every element of the body's only output, read through its only access, against the reference.
void expect_access_right(const ir::Graph& body, unsigned seed) {
  SCOPED_TRACE(ir::print(body));
  const LoopTiling tiling = analyze(body);
  ASSERT_TRUE(tiling.support.ok) << tiling.support.reason;
  ASSERT_EQ(tiling.accesses.size(), 1u);
  std::mt19937 random(seed);
  auto inputs = testing::random_inputs(body, {}, random);
  std::map<ir::ValueId, ReferenceTensor> values;
  for (size_t i = 0; i < inputs.size(); ++i) values[body.inputs()[i]] = inputs[i];
  for (ir::ValueId id = 0; id < static_cast<ir::ValueId>(body.value_count()); ++id) {
    if (body.value(id).is_constant()) values[id] = ReferenceTensor::from(*body.value(id).constant);
  }
  const ReferenceTensor expected = kernels::reference::evaluate(body, inputs).front();
  std::vector<int64_t> x(tiling.domain.size(), 0);
  for (int64_t flat = 0; flat < expected.elements(); ++flat) {
    int64_t rest = flat;
    for (size_t axis = x.size(); axis-- > 0;) {
      x[axis] = rest % expected.dims[axis];
      rest /= expected.dims[axis];
    }
    ASSERT_EQ(read(tiling.accesses[0], values, x), expected.number(flat)) << "element " << flat;
    ASSERT_EQ(element(0, tiling.stores[0].strides, {}, x), flat);
  }
}

// Grows a body of movement ops over one input, each op with random arguments that fit.
class RandomMovement {
 public:
  explicit RandomMovement(unsigned seed) : random_(seed) {
    ir::Value x;
    x.name = "x";
    x.dtype = DType::kF32;
    x.shape = Shape{};
    for (int i = pick(1, 3); i > 0; --i) x.shape->push_back(Dim(pick(1, 5)));
    value_ = body_.add_input(x);
  }

  ir::Graph grow(int ops) {
    while (ops-- > 0) add_random_op();
    body_.add_output(value_);
    return std::move(body_);
  }

 private:
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  std::vector<int64_t> dims() const { return static_dims(*body_.value(value_).shape); }

  void add(ir::Node node, std::vector<int64_t> dims) {
    ir::Value value;
    value.dtype = DType::kF32;
    value.shape = make_shape(dims);
    node.inputs.insert(node.inputs.begin(), value_);
    value_ = body_.add_value(std::move(value));
    node.outputs = {value_};
    body_.add_node(std::move(node));
  }

  void add_random_op() {
    constexpr std::array kOps{&RandomMovement::transpose, &RandomMovement::slice,
                              &RandomMovement::expand,    &RandomMovement::block_expand,
                              &RandomMovement::gather,    &RandomMovement::pick_along,
                              &RandomMovement::pad,       &RandomMovement::reshape};
    (this->*kOps[pick(0, kOps.size() - 1)])();
  }

  void transpose() {
    const auto from = dims();
    std::vector<int64_t> perm(from.size()), to;
    std::iota(perm.begin(), perm.end(), 0);
    std::shuffle(perm.begin(), perm.end(), random_);
    for (const int64_t axis : perm) to.push_back(from[axis]);
    ir::Node node;
    node.op = "Transpose";
    node.attributes["perm"] = perm;
    add(node, to);
  }

  void slice() {
    auto to = dims();
    std::vector<std::string> starts;
    std::vector<int64_t> steps;
    for (int64_t& size : to) {
      const int64_t first = pick(0, size - 1), last = pick(0, size - 1);
      const int64_t step = first <= last ? pick(1, 2) : -pick(1, 2);
      starts.push_back(std::to_string(first));
      steps.push_back(step);
      stepped_ |= step != 1;
      size = std::abs(last - first) / std::abs(step) + 1;
    }
    ir::Node node;
    node.op = "tenon::Slice";
    node.attributes["starts"] = starts;
    node.attributes["steps"] = steps;
    add(node, to);
  }

  void expand() {
    auto to = dims();
    for (int64_t& size : to) size = size == 1 ? pick(1, 3) : size;
    if (to.size() < 4) to.insert(to.begin(), pick(1, 3));
    ir::Node node;
    node.op = "Expand";
    add(node, to);
  }

  void block_expand() {
    if (stepped_) return;  // steps below a BlockExpand leave the closed form
    auto to = dims();
    const int64_t axis = pick(0, to.size() - 1), block = pick(2, 3);
    to[axis] = to[axis] * block - pick(0, block - 1);
    ir::Node node;
    node.op = "tenon::BlockExpand";
    node.attributes["axis"] = axis;
    node.attributes["block"] = block;
    add(node, to);
  }

  void gather() {
    auto to = dims();
    const int64_t axis = pick(0, to.size() - 1);
    // Random indices are 0, 1 or 2. Gathering by gathered indices and from a Pad is refused.
    if (to[axis] < 3 || gathered_ || padded_) return;
    gathered_ = true;
    std::vector<int64_t> index_dims{pick(1, 4)};
    if (pick(0, 1)) index_dims.push_back(pick(1, 3));
    ir::Value indices;
    indices.name = "i";
    indices.dtype = DType::kI64;
    indices.shape = make_shape(index_dims);
    ir::Node node;
    node.op = "Gather";
    node.attributes["axis"] = axis;
    node.inputs = {body_.add_input(indices)};
    to.erase(to.begin() + axis);
    to.insert(to.begin() + axis, index_dims.begin(), index_dims.end());
    add(node, to);
  }

  void pick_along() {
    auto to = dims();
    const int64_t axis = pick(0, to.size() - 1);
    if (to.size() < 2 || to[axis] < 3 || gathered_ || padded_) return;
    gathered_ = true;
    to.erase(to.begin() + axis);
    ir::Value indices;
    indices.name = "i";
    indices.dtype = DType::kI64;
    std::vector<int64_t> index_dims = to;
    for (size_t i = 0; i < to.size(); ++i) {
      if (to[i] == 1) {
        to[i] = index_dims[i] = pick(1, 3);
      } else if (pick(0, 2) == 0) {
        index_dims[i] = 1;
      }
    }
    indices.shape = make_shape(index_dims);
    ir::Node node;
    node.op = ir::kPick;
    node.attributes["axis"] = axis;
    node.inputs = {body_.add_input(indices)};
    add(node, to);
  }

  void pad() {
    auto to = dims();
    std::vector<std::string> begins;
    for (int64_t& size : to) {
      const int64_t begin = pick(-1, 2), end = pick(0, 2);
      if (size + begin + end < 1) return;
      begins.push_back(std::to_string(begin));
      size += begin + end;
    }
    ir::Node node;
    node.op = "tenon::Pad";
    padded_ = true;
    node.attributes["pads_begin"] = begins;
    node.inputs = {
        body_.add_constant("fill", ir::Tensor::of(DType::kF32, {}, {double(pick(100, 200))}))};
    add(node, to);
  }

  void reshape() {
    auto to = dims();
    to.erase(std::remove(to.begin(), to.end(), 1), to.end());
    to.insert(to.begin() + pick(0, to.size()), 1);
    ir::Node node;
    node.op = "Reshape";
    add(node, to);
  }

  std::mt19937 random_;
  ir::Graph body_;
  ir::ValueId value_ = ir::kNoValue;
  bool stepped_ = false, gathered_ = false, padded_ = false;
};

TEST(IndexMap, RandomMovementReadsTheRightElements) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    expect_access_right(RandomMovement(seed).grow(1 + static_cast<int>(seed % 5)), seed);
    if (HasFatalFailure()) return;
  }
}

LoopTiling tiling_of(std::string_view text) { return analyze(ir::parse(text)); }

TEST(IndexMap, BroadcastAtRunTimeZeroesTheStride) {
  const LoopTiling tiling = tiling_of(R"(graph body {
    input %x: f32[b,s]
    input %y: f32[c,s]
    %z: f32[broadcast(b,c),s] = Add(%x, %y)
    output %z
  })");
  ASSERT_TRUE(tiling.support.ok) << tiling.support.reason;
  const auto with = [](int64_t b, int64_t c) {
    return [=](std::string_view name) -> int64_t { return name == "b" ? b : name == "c" ? c : 7; };
  };
  const Dim& rows = tiling.accesses[0].strides[0];
  EXPECT_EQ(rows.evaluate(with(5, 1)), 7);
  EXPECT_EQ(rows.evaluate(with(1, 5)), 0);
}

// A shape that is known better than the operands' keeps its word; the Run checks it.
TEST(IndexMap, OperandSizesThatAreNotEqualAreChecked) {
  const LoopTiling tiling = tiling_of(R"(graph body {
    input %x: f32[b,s]
    input %y: f32[min(512,s)]
    %z: f32[b,s] = Add(%x, %y)
    output %z
  })");
  ASSERT_TRUE(tiling.support.ok) << tiling.support.reason;
  EXPECT_EQ(text(tiling.domain), "[b,s]");
  ASSERT_EQ(tiling.fits.size(), 1u);
  EXPECT_EQ(tiling.fits[0].size.text(), "min(512,s)");
  EXPECT_EQ(tiling.fits[0].over.text(), "s");
}

TEST(IndexMap, SoftmaxReducesOneAxis) {
  const LoopTiling tiling = tiling_of(R"(graph body {
    input %x: f32[b,s]
    %m: f32[b,1] = ReduceMax(%x) {axes=[1], keepdims=1}
    %d: f32[b,s] = Sub(%x, %m)
    output %d
    output %m
  })");
  ASSERT_TRUE(tiling.support.ok) << tiling.support.reason;
  EXPECT_EQ(tiling.reduced_axes, std::vector<int>{1});
  EXPECT_EQ(tiling.accesses.size(), 1u);
  EXPECT_EQ(tiling.region.size(), 2u);
  EXPECT_EQ(tiling.stores[0].strides[0], Dim::symbol("s"));
  EXPECT_TRUE(tiling.stores[1].strides[0].is(1));
  EXPECT_TRUE(tiling.stores[1].strides[1].is(0));
}

struct Refusal {
  const char* body;
  const char* reason;
};

class IndexMapRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(IndexMapRefuses, WithAReason) {
  const LoopTiling tiling = tiling_of(GetParam().body);
  EXPECT_FALSE(tiling.support.ok);
  EXPECT_NE(tiling.support.reason.find(GetParam().reason), std::string::npos)
      << tiling.support.reason;
}

INSTANTIATE_TEST_SUITE_P(Rules, IndexMapRefuses,
                         ::testing::Values(Refusal{R"(graph body {
          input %x: f32[4,8]
          %e: f32[4,8] = Exp(%x)
          %t: f32[8,4] = Transpose(%e) {perm=[1,0]}
          output %t
        })",
                                                   "moves a computed value"},
                                           Refusal{R"(graph body {
          input %x: f32[4,8]
          %a: f32[4,1] = ReduceSum(%x) {axes=[1], keepdims=1}
          %b: f32[1,8] = ReduceSum(%x) {axes=[0], keepdims=1}
          %c: f32[4,8] = Mul(%a, %b)
          output %c
        })",
                                                   "reduces other axes"},
                                           Refusal{R"(graph body {
          input %x: f32[4,1]
          input %y: f32[4,8]
          %a: f32[4,1] = ReduceSum(%x) {axes=[1], keepdims=1}
          %c: f32[4,8] = Mul(%a, %y)
          output %c
        })",
                                                   "where the loop runs over 8"},
                                           Refusal{R"(graph body {
          input %x: f32[1,8]
          input %y: f32[4,8]
          %a: f32[1,8] = Neg(%x)
          %c: f32[4,8] = Mul(%a, %y)
          output %c
          output %a
        })",
                                                   "neither the whole of the domain"},
                                           Refusal{R"(graph body {
          input %x: f32[4,8]
          %y: f32[4,8] = MatMul(%x, %x)
          output %y
        })",
                                                   "MatMul is no primitive"},
                                           Refusal{R"(graph body {
          input %x: f32[4,8]
          %y: f32[8,4] = Reshape(%x)
          output %y
        })",
                                                   "moves elements between axes"}));

}  // namespace
}  // namespace tenon::tiling
