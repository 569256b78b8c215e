// Prints how fast loops run on one core and how long they take to compile. Each is judged by the
// reference before it is timed; nothing is asserted about time.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "kernels/build_program.h"
#include "kernels/reference/evaluate.h"
#include "tests/kernels/run_graph.h"

namespace tenon::kernels {
namespace {

using Clock = std::chrono::steady_clock;

double nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// Keeps its buffers, as a runtime with bound outputs does.
class WarmContext final : public RunContext {
 public:
  WarmContext(const ir::Graph& graph, std::vector<HostTensor> inputs) : inputs_(std::move(inputs)) {
    for (ir::ValueId id : graph.outputs()) outputs_.push_back({graph.value(id).dtype, {}, {}});
  }
  Input input(size_t index) override { return {inputs_[index].bytes.data(), inputs_[index].dims}; }
  void* output(size_t index, std::span<const int64_t> dims) override {
    HostTensor& output = outputs_[index];
    if (output.bytes.empty()) {
      output.dims.assign(dims.begin(), dims.end());
      output.bytes.resize(storage_bytes(output.dtype, output.elements()));
    }
    return output.bytes.data();
  }
  void parallel_for(int64_t total, int64_t,
                    const std::function<void(int64_t, int64_t)>& fn) override {
    fn(0, total);
  }
  const HostTensor& result(size_t index) const { return outputs_[index]; }
  size_t traffic() const {
    size_t bytes = 0;
    for (const HostTensor& tensor : inputs_) bytes += tensor.bytes.size();
    for (const HostTensor& tensor : outputs_) bytes += tensor.bytes.size();
    return bytes;
  }

 private:
  std::vector<HostTensor> inputs_, outputs_;
};

void expect_reference(const ir::Graph& graph, const std::vector<HostTensor>& inputs,
                      const WarmContext& context) {
  std::vector<reference::ReferenceTensor> tensors;
  for (const HostTensor& input : inputs) {
    tensors.push_back(
        reference::ReferenceTensor::from_bytes(input.dtype, input.dims, input.bytes.data()));
  }
  const auto expected = reference::evaluate(graph, tensors);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(context.result(i).dims, expected[i].dims);
    expect_near(context.result(i).numbers(), expected[i].reals, 1e-4);
  }
}

double median_run(Executable& executable, WarmContext& context) {
  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  while (times.size() < 5 || (nanoseconds_since(begin) < 2e8 && times.size() < 20000)) {
    const Clock::time_point start = Clock::now();
    executable.run(context);
    times.push_back(nanoseconds_since(start));
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void measure(std::string_view title, std::string_view text, const std::vector<HostTensor>& inputs) {
  SCOPED_TRACE(title);
  const ir::Graph graph = ir::parse(text);
  const Clock::time_point start = Clock::now();
  const auto executable = build_on_host(graph, test_settings());
  const double build = nanoseconds_since(start);
  WarmContext context(graph, inputs);
  executable->run(context);
  expect_reference(graph, inputs, context);
  if (::testing::Test::HasFatalFailure()) return;
  const double run = median_run(*executable, context);
  fmt::print("{:<34} {:>9.2f} us {:>7.2f} GB/s   built in {:>5.1f} ms\n", title, run / 1e3,
             static_cast<double>(context.traffic()) / run, build / 1e6);
}

HostTensor waves(DType dtype, std::vector<int64_t> dims) {
  return HostTensor::from(dtype, std::move(dims),
                          [](int64_t i) { return std::sin(0.37 * static_cast<double>(i)); });
}

TEST(LoopBenchmark, PrintTable) {
  measure("add [16]", R"(graph main {
  input %x: f32[n]
  %y: f32[n] = tenon::Loop(%x) body {
    input %a: f32[n]
    %b: f32[n] = Add(%a, %a)
    output %b
  }
  output %y
})",
          {waves(DType::kF32, {16})});
  measure("add with bias [b,s,384], 128 rows", R"(graph main {
  input %x: f32[b,s,384]
  input %v: f32[384]
  %y: f32[b,s,384] = tenon::Loop(%x, %v) body {
    input %a: f32[b,s,384]
    input %c: f32[384]
    %b: f32[b,s,384] = Add(%a, %c)
    output %b
  }
  output %y
})",
          {waves(DType::kF32, {1, 128, 384}), waves(DType::kF32, {384})});
  const std::string gelu = R"(
    %d: f32[r,1536] = Mul(%a, %k)
    %e: f32[r,1536] = Erf(%d)
    %f: f32[r,1536] = Add(%e, %one)
    %g: f32[r,1536] = Mul(%a, %f)
    %h: f32[r,1536] = Mul(%g, %half)
)";
  measure("gelu [128,1536]", R"(graph main {
  input %x: f32[r,1536]
  const %k: f32[] = hex:f304353f
  const %one: f32[] = hex:0000803f
  const %half: f32[] = hex:0000003f
  %y: f32[r,1536] = tenon::Loop(%x, %k, %one, %half) body {
    input %a: f32[r,1536]
    input %k: f32[]
    input %one: f32[]
    input %half: f32[])" + gelu + R"(    output %h
  }
  output %y
})",
          {waves(DType::kF32, {128, 1536})});
  measure("layer norm [128,384]", R"(graph main {
  input %x: f32[r,384]
  input %g: f32[384]
  input %h: f32[384]
  const %eps: f32[] = hex:acc52737
  %y: f32[r,384] = tenon::Loop(%x, %g, %h, %eps) body {
    input %a: f32[r,384]
    input %scale: f32[384]
    input %bias: f32[384]
    input %e: f32[]
    %m: f32[r,1] = ReduceMean(%a) {axes=[1]}
    %d: f32[r,384] = Sub(%a, %m)
    %q: f32[r,384] = Mul(%d, %d)
    %v: f32[r,1] = ReduceMean(%q) {axes=[1]}
    %w: f32[r,1] = Add(%v, %e)
    %s: f32[r,1] = Sqrt(%w)
    %n: f32[r,384] = Div(%d, %s)
    %o: f32[r,384] = Mul(%n, %scale)
    %p: f32[r,384] = Add(%o, %bias)
    output %p
  }
  output %y
})",
          {waves(DType::kF32, {128, 384}), waves(DType::kF32, {384}), waves(DType::kF32, {384})});
  measure("softmax [1536,128]", R"(graph main {
  input %x: f32[r,n]
  %y: f32[r,n] = tenon::Loop(%x) body {
    input %a: f32[r,n]
    %m: f32[r,1] = ReduceMax(%a) {axes=[1]}
    %s: f32[r,n] = Sub(%a, %m)
    %e: f32[r,n] = Exp(%s)
    %t: f32[r,1] = ReduceSum(%e) {axes=[1]}
    %p: f32[r,n] = Div(%e, %t)
    output %p
  }
  output %y
})",
          {waves(DType::kF32, {1536, 128})});
  measure("transpose [128,12,32] to [12,128,32]", R"(graph main {
  input %x: f32[s,12,32]
  %y: f32[12,s,32] = tenon::Loop(%x) body {
    input %a: f32[s,12,32]
    %b: f32[12,s,32] = Transpose(%a) {perm=[1,0,2]}
    output %b
  }
  output %y
})",
          {waves(DType::kF32, {128, 12, 32})});
  measure("transpose [1024,1024]", R"(graph main {
  input %x: f32[n,m]
  %y: f32[m,n] = tenon::Loop(%x) body {
    input %a: f32[n,m]
    %b: f32[m,n] = Transpose(%a) {perm=[1,0]}
    output %b
  }
  output %y
})",
          {waves(DType::kF32, {1024, 1024})});
  measure("embedding [30522,384], 128 tokens", R"(graph main {
  input %t: f32[30522,384]
  input %i: i64[b,s]
  %y: f32[b,s,384] = tenon::Loop(%t, %i) body {
    input %a: f32[30522,384]
    input %k: i64[b,s]
    %c: f32[b,s,384] = Gather(%a, %k) {axis=0}
    output %c
  }
  output %y
})",
          {waves(DType::kF32, {30522, 384}), HostTensor::from(DType::kI64, {1, 128}, [](int64_t i) {
             return static_cast<double>(i * 37 % 30522);
           })});
  measure("dequantize nvfp4 [1024,1024]", R"(graph main {
  input %x: f4e2m1[1024,1024]
  input %s: f8e4m3fn[1024,64]
  %y: f32[1024,1024] = tenon::Loop(%x, %s) body {
    input %a: f4e2m1[1024,1024]
    input %b: f8e4m3fn[1024,64]
    %c: f32[1024,1024] = Cast(%a)
    %e: f8e4m3fn[1024,1024] = tenon::BlockExpand(%b) {axis=1, block=16}
    %f: f32[1024,1024] = Cast(%e)
    %g: f32[1024,1024] = Mul(%c, %f)
    output %g
  }
  output %y
})",
          {waves(DType::kF4E2M1, {1024, 1024}), waves(DType::kF8E4M3FN, {1024, 64})});
  measure("mean over rows [8,128,384]", R"(graph main {
  input %x: f32[b,s,384]
  %y: f32[b,1,384] = tenon::Loop(%x) body {
    input %a: f32[b,s,384]
    %m: f32[b,1,384] = ReduceMean(%a) {axes=[1]}
    output %m
  }
  output %y
})",
          {waves(DType::kF32, {8, 128, 384})});
  measure("sum of [4000000]", R"(graph main {
  input %x: f32[n]
  %y: f32[1] = tenon::Loop(%x) body {
    input %a: f32[n]
    %m: f32[1] = ReduceSum(%a) {axes=[0]}
    output %m
  }
  output %y
})",
          {waves(DType::kF32, {4000000})});
}

}  // namespace
}  // namespace tenon::kernels
