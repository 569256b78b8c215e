// Weights as models store them, at the sizes that models have: no limit of a pass may change what
// is claimed. Every form of the matcher is fused at a small and at a large size and must give the
// same node, taken by the same candidate; a few pieces of the packed weight are compared with those
// of a narrow one, whose numbers other tests judge.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/llvm/scaled_dot/problem.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

// Rows of a large tensor repeat; all that repeats is one piece of memory.
constexpr int64_t kRepeatedRows = 128;
constexpr int64_t kVocabulary = 151936;
constexpr int64_t kMostRandom = 1 << 20;

// A tensor of `dims` whose rows repeat. Its pages are those of the first rows, mapped again.
ir::TensorPtr repeated(DType dtype, std::vector<int64_t> dims, const std::vector<std::byte>& rows) {
  auto tensor = std::make_shared<ir::Tensor>();
  tensor->dtype = dtype;
  tensor->dims = std::move(dims);
  tensor->bytes = storage_bytes(dtype, tensor->elements());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (rows.size() % page != 0) {
    std::vector<std::byte> all(tensor->bytes);
    for (size_t at = 0; at < all.size(); at += rows.size()) {
      std::memcpy(&all[at], rows.data(), std::min(rows.size(), all.size() - at));
    }
    return ir::Tensor::copy(dtype, tensor->dims, all);
  }
  const int file = memfd_create("weight", 0);
  EXPECT_EQ(write(file, rows.data(), rows.size()), static_cast<ssize_t>(rows.size()));
  const size_t mapped = (tensor->bytes + page - 1) / page * page;
  auto* first = static_cast<std::byte*>(
      mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  for (size_t at = 0; at < mapped; at += rows.size()) {
    mmap(first + at, std::min(rows.size(), mapped - at), PROT_READ, MAP_PRIVATE | MAP_FIXED, file,
         0);
  }
  close(file);
  tensor->data = first;
  tensor->owner = {first, [mapped](std::byte* begin) { munmap(begin, mapped); }};
  return tensor;
}

// Codes that are numbers, and moderate scales.
std::vector<std::byte> random_rows(DType dtype, int64_t elements, bool scale) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(storage_bytes(dtype, elements));
  for (int64_t i = 0; i < elements; ++i) {
    if (!scale) {
      store_code(
          dtype, bytes.data(), i,
          random() & (dtype == DType::kF8E5M2 ? 0x3bu : 0x77u) & ((1u << bit_width(dtype)) - 1));
    } else {
      const double value = std::ldexp(1 + (random() % 8) / 8.0, -static_cast<int>(random() % 4));
      store_code(dtype, bytes.data(), i, encode(dtype, value));
    }
  }
  return bytes;
}

struct Size {
  int64_t n, k;
};

// A graph under construction: constants whose rows repeat, and nodes.
class Model {
 public:
  Model(DType activation, Size size) : activation(activation), size(size) {
    ir::Value a;
    a.name = "a";
    a.dtype = activation;
    a.shape = Shape{Dim::symbol("m"), size.k};
    rows = graph.add_input(std::move(a));
  }

  ValueId codes(DType dtype, std::vector<int64_t> dims) { return constant(dtype, dims, false); }
  ValueId scales(DType dtype, std::vector<int64_t> dims) { return constant(dtype, dims, true); }
  ValueId scalar(DType dtype, double value) {
    return graph.add_constant("g", ir::Tensor::of(dtype, {}, {value}));
  }
  ValueId add(const char* op, std::vector<ValueId> inputs, DType dtype, Shape shape,
              std::map<std::string, ir::Attribute> attributes = {}) {
    ir::Value value;
    value.name = op;
    value.dtype = dtype;
    value.shape = std::move(shape);
    Node node;
    node.op = op;
    node.since_version = 23;
    node.inputs = std::move(inputs);
    node.attributes = std::move(attributes);
    node.sources = {count_++};
    const ValueId result = graph.add_value(std::move(value));
    node.outputs = {result};
    graph.add_node(std::move(node));
    return result;
  }
  ValueId dequantize(ValueId codes, std::vector<ValueId> parameters, int64_t axis, int64_t block) {
    const DType dtype = graph.value(parameters.front()).dtype == DType::kF8E8M0
                            ? activation
                            : graph.value(parameters.front()).dtype;
    parameters.insert(parameters.begin(), codes);
    std::map<std::string, ir::Attribute> attributes{{"axis", axis}};
    if (block > 0) attributes["block_size"] = block;
    return add("DequantizeLinear", std::move(parameters), dtype, *graph.value(codes).shape,
               std::move(attributes));
  }
  ValueId cast(ValueId value) {
    if (graph.value(value).dtype == activation) return value;
    const std::map<DType, int64_t> numbers{{DType::kF32, 1}, {DType::kF16, 10}, {DType::kBF16, 16}};
    return add("Cast", {value}, activation, *graph.value(value).shape,
               {{"to", numbers.at(activation)}});
  }
  // The weight is [N, K] or [K, N]: through Gemm, MatMul, or MatMul behind a Transpose.
  void multiply(ValueId weight, bool k_last, bool gemm) {
    weight = cast(weight);
    const Shape y{Dim::symbol("m"), size.n};
    if (gemm) {
      finish(add("Gemm", {rows, weight}, activation, y, {{"transB", int64_t{k_last}}}));
      return;
    }
    if (k_last) {
      weight = add("Transpose", {weight}, activation, {size.k, size.n},
                   {{"perm", std::vector<int64_t>{1, 0}}});
    }
    finish(add("MatMul", {rows, weight}, activation, y));
  }
  void finish(ValueId y) { graph.add_output(y); }

  DType activation;
  Size size;
  Graph graph;
  ValueId rows = ir::kNoValue;

 private:
  ValueId constant(DType dtype, const std::vector<int64_t>& dims, bool scale) {
    int64_t row = 1;
    for (size_t i = 1; i < dims.size(); ++i) row *= dims[i];
    int64_t rows = std::min(kRepeatedRows, dims.front());
    while (rows * row > kMostRandom && rows % 2 == 0) rows /= 2;
    return graph.add_constant(scale ? "scale" : "codes",
                              repeated(dtype, dims, random_rows(dtype, rows * row, scale)));
  }

  int count_ = 0;
};

struct Form {
  std::string name;
  std::function<void(Model&)> build;
  // The first rows of a large weight are a narrow one.
  bool rows_first = true;
  // 8-bit codes of a vocabulary are searched for long: one type of scales tells for the others.
  bool is_wide = false;
};

int64_t blocks(const Model& m, int64_t block) { return (m.size.k + block - 1) / block; }

void add_two_level_forms(std::vector<Form>& forms, std::initializer_list<bool> gemms) {
  for (const DType global : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool gemm : gemms) {
      forms.push_back({fmt::format("nvfp4, {} global, {}", name(global), gemm ? "Gemm" : "MatMul"),
                       [=](Model& m) {
                         const ValueId s = m.scales(DType::kF8E4M3FN, {m.size.n, blocks(m, 16)});
                         const ValueId scale = m.dequantize(s, {m.scalar(global, 0.0123)}, 1, 0);
                         const ValueId w = m.codes(DType::kF4E2M1, {m.size.n, m.size.k});
                         m.multiply(m.dequantize(w, {scale}, 1, 16), true, gemm);
                       }});
    }
  }
}

void add_one_level_forms(std::vector<Form>& forms) {
  const auto add = [&](DType element, DType scale, int64_t block, bool k_last, bool gemm) {
    const std::string text =
        fmt::format("{}, {} scales, block {}, {}, {}", name(element), name(scale), block,
                    k_last ? "[N,K]" : "[K,N]", gemm ? "Gemm" : "MatMul");
    forms.push_back(
        {text,
         [=](Model& m) {
           const auto [n, k] = m.size;
           const ValueId w = m.codes(element, k_last ? std::vector{n, k} : std::vector{k, n});
           const auto dims = [&]() -> std::vector<int64_t> {
             if (block == 0) return {n};
             if (k_last) return {n, blocks(m, block)};
             return {blocks(m, block), n};
           }();
           const ValueId s = block < 0 ? m.scalar(scale, 0.0123) : m.scales(scale, dims);
           const int64_t axis = (block > 0) == k_last ? 1 : 0;
           m.multiply(m.dequantize(w, {s}, axis, std::max<int64_t>(block, 0)), k_last, gemm);
         },
         k_last, bit_width(element) == 8 && scale != DType::kF16});
  };
  add(DType::kF4E2M1, DType::kF8E8M0, 32, true, true);
  add(DType::kF8E4M3FN, DType::kF8E8M0, 32, true, false);
  for (const DType scale : {DType::kF32, DType::kF16, DType::kBF16}) {
    add(DType::kF8E4M3FN, scale, -1, true, true);
    add(DType::kF8E4M3FN, scale, 128, true, false);
    for (const DType element : {DType::kI4, DType::kU4, DType::kI8}) {
      add(element, scale, 32, true, true);
      add(element, scale, 32, false, false);
      add(element, scale, 0, true, false);
    }
  }
}

void add_contrib_forms(std::vector<Form>& forms) {
  for (const DType scale : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t bits : {4, 8}) {
      forms.push_back(
          {fmt::format("MatMulNBits {} bits, {} scales", bits, name(scale)), [=](Model& m) {
             const auto [n, k] = m.size;
             const ValueId w = m.codes(DType::kU8, {n, blocks(m, 32), 32 * bits / 8});
             const ValueId s = m.scales(scale, {n, blocks(m, 32)});
             m.finish(m.add("com.microsoft::MatMulNBits", {m.rows, w, s}, m.activation,
                            {Dim::symbol("m"), n},
                            {{"N", n}, {"K", k}, {"bits", bits}, {"block_size", int64_t{32}}}));
           }});
    }
  }
  forms.push_back({"MatMulBlockQuantizedFp4Weight", [](Model& m) {
                     const auto [n, k] = m.size;
                     const ValueId w = m.codes(DType::kU8, {n, k / 2});
                     const ValueId s = m.codes(DType::kU8, {n, blocks(m, 16)});
                     m.finish(m.add("com.microsoft::MatMulBlockQuantizedFp4Weight",
                                    {m.rows, w, s, m.scalar(DType::kF32, 0.0123)}, m.activation,
                                    {Dim::symbol("m"), n}, {{"block_size", int64_t{16}}}));
                   }});
  forms.push_back({"MatMulBlockQuantizedFp8Weight", [](Model& m) {
                     const auto [n, k] = m.size;
                     const ValueId w = m.codes(DType::kF8E4M3FN, {n, k});
                     const ValueId s = m.scales(DType::kF32, {n, blocks(m, 128)});
                     m.finish(m.add("com.microsoft::MatMulBlockQuantizedFp8Weight", {m.rows, w, s},
                                    m.activation, {Dim::symbol("m"), n},
                                    {{"block_size", int64_t{128}}}));
                   }});
}

std::vector<Form> forms() {
  std::vector<Form> all;
  add_two_level_forms(all, {true, false});
  add_one_level_forms(all);
  add_contrib_forms(all);
  return all;
}

Settings gpu_settings() {
  Settings settings = conformance_settings();
  settings.gpu = codegen::GpuTarget{};
  settings.gpu->pipelines = true;
  return settings;
}

Graph fused(const Form& form, DType activation, Size size) {
  Model model(activation, size);
  form.build(model);
  return fuse(std::move(model.graph));
}

const Node& only_node(const Graph& graph) {
  EXPECT_EQ(graph.order().size(), 1u);
  return graph.node(graph.order().front());
}

std::string name_of(const Choice& choice) {
  return choice.ok() ? choice.chosen() : choice.reason();
}

Choice choose(const Graph& graph, const Settings& settings) {
  return select(graph, only_node(graph), settings);
}

// Pieces of packed constants, which begin with the first rows.
void expect_same_pieces(const Graph& large, const Graph& narrow, const Settings& settings) {
  const Lowered wide = choose(large, settings).lower();
  const Lowered few = choose(narrow, settings).lower();
  ASSERT_EQ(wide.packed.size(), few.packed.size());
  for (size_t i = 0; i < wide.packed.size(); ++i) {
    const PackedConstant &whole = wide.packed[i], &start = few.packed[i];
    if (!whole.pack || !start.pack) continue;
    const size_t count = std::min(start.bytes, 64 * start.unit);
    std::vector<std::byte> a(count), b(count);
    start.pack(0, a);
    whole.pack(0, b);
    EXPECT_TRUE(a == b) << "packed constant " << i;
    // Rows repeat: so do the pieces.
    const size_t period = start.bytes / start.unit * start.unit;
    const size_t last = (whole.bytes - count) / period * period;
    whole.pack(static_cast<int64_t>(last), b);
    EXPECT_TRUE(a == b) << "packed constant " << i << " at byte " << last;
  }
}

void expect_claimed_alike(Size size) {
  const DType activation = DType::kF16;
  for (const Form& form : forms()) {
    if (form.is_wide && size.n > kVocabulary / 2) continue;
    SCOPED_TRACE(form.name);
    const Graph small = fused(form, activation, {kRepeatedRows, 512});
    const Graph large = fused(form, activation, size);
    ASSERT_EQ(only_node(large).op, ir::kScaledDot) << ir::print(large);
    const Settings host = conformance_settings(), gpu = gpu_settings();
    EXPECT_EQ(name_of(choose(large, host)), name_of(choose(small, host)));
    EXPECT_EQ(name_of(choose(small, gpu)), "pipelined");
    const Choice choice = choose(large, gpu);
    ASSERT_EQ(name_of(choice), "pipelined");
    if (!form.rows_first) continue;
    const Graph narrow = fused(form, activation, {kRepeatedRows, size.k});
    expect_same_pieces(large, narrow, gpu);
  }
}

// Scales of two levels under and over 1 MiB, to which constants once were folded, and one odd form
// that only folding serves: scales as a product of constants.
TEST(WeightSizes, NumbersUnderAndOverTheLimitOfFolding) {
  std::vector<Form> all;
  add_two_level_forms(all, {true});
  all.push_back({"scales by Mul", [](Model& m) {
                   const std::vector<int64_t> dims{m.size.n, blocks(m, 16)};
                   const ValueId s = m.scales(DType::kF32, dims);
                   const ValueId g = m.scalar(DType::kF32, 0.0123);
                   const ValueId scale = m.add("Mul", {s, g}, DType::kF32, make_shape(dims));
                   const ValueId w = m.codes(DType::kF4E2M1, {m.size.n, m.size.k});
                   m.multiply(m.dequantize(w, {scale}, 1, 16), true, true);
                 }});
  all.push_back({"codes by Transpose", [](Model& m) {
                   const auto [n, k] = m.size;
                   const ValueId w = m.codes(DType::kF4E2M1, {k, n});
                   const ValueId turned = m.add("Transpose", {w}, DType::kF4E2M1, {n, k},
                                                {{"perm", std::vector<int64_t>{1, 0}}});
                   const ValueId s = m.scales(DType::kF16, {n, blocks(m, 16)});
                   m.multiply(m.dequantize(turned, {s}, 1, 16), true, true);
                 }});
  for (const Size size : {Size{128, 512}, Size{1056, 4096}}) {
    for (const Form& form : all) {
      SCOPED_TRACE(fmt::format("{} at {} x {}", form.name, size.n, size.k));
      Model model(DType::kF16, size);
      form.build(model);
      const Graph fused = fuse(model.graph);
      std::mt19937 random(5);
      const std::vector<ReferenceTensor> inputs = {random_tensor(DType::kF16, {2, size.k}, random)};
      const auto executable = build_for_test(fused, conformance_settings());
      // Numbers of up to 6 * 15 * 0.0123 in f16 and f32, summed over K.
      EXPECT_EQ(disagreement(run(*executable, fused, inputs), reference::evaluate(fused, inputs),
                             [](size_t, int64_t, double) { return 1e-3; }),
                "");
    }
  }
}

TEST(WeightSizes, OfAnMlp) { expect_claimed_alike({4096, 14336}); }
TEST(WeightSizes, OfAVocabulary) { expect_claimed_alike({kVocabulary, 4096}); }

}  // namespace
}  // namespace tenon::kernels
