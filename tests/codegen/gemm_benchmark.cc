// Micro-kernels written with the builder, on one core with data in L1 and L2: how close the emitted
// code comes to the processor's peak. A benchmark, not a test: run build/…/bin/codegen_benchmark.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

// Vectors that straddle cache lines would halve the load bandwidth.
template <typename T>
class Aligned {
 public:
  Aligned(size_t count, T value) : storage_(count + 64 / sizeof(T), value) {}
  T* data() {
    auto address = reinterpret_cast<uintptr_t>(storage_.data());
    return storage_.data() + (64 - address % 64) % 64 / sizeof(T);
  }

 private:
  std::vector<T> storage_;
};

double seconds(const std::function<void()>& run) {
  auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Chains enough to hide the latency of one, few enough for 16 registers.
constexpr int kChains = 12;

// Independent chains of fma, nothing else: the peak that the others are measured against. What is
// carried is the addend: fmla overwrites it, and any other operand would need a copy.
Kernel fma_chains(int lanes) {
  Builder b("fma_chains");
  ValueId y = b.buffer("y", DType::kF32), n = b.index_parameter("n");
  ValueId factor = b.load({y, b.index(0)}, {lanes});
  std::vector<ValueId> chains;
  for (int i = 0; i < kChains; ++i) chains.push_back(b.load({y, b.index(i)}, {lanes}));
  chains = b.loop(b.index(0), n, b.index(1), chains, [&](ValueId, std::span<const ValueId> in) {
    std::vector<ValueId> out;
    for (ValueId chain : in) out.push_back(b.fma(factor, factor, chain));
    return out;
  });
  for (int i = 0; i < kChains; ++i) b.store({y, b.index(i * lanes)}, chains[i]);
  return b.finish();
}

// The same of byte products: the peak of the dots with int8 activations.
Kernel byte_chains(int lanes) {
  constexpr int kChains = 12;
  Builder b("byte_chains");
  ValueId y = b.buffer("y", DType::kI32), bytes = b.buffer("bytes", DType::kI8);
  ValueId n = b.index_parameter("n");
  ValueId four = b.load({bytes, b.index(0)}, {1, 4});
  ValueId factor = b.reshape(b.load({bytes, b.index(0)}, {4 * lanes}), {lanes, 4});
  std::vector<ValueId> chains;
  for (int i = 0; i < kChains; ++i) chains.push_back(b.load({y, b.index(i)}, {1, lanes}));
  chains = b.loop(b.index(0), n, b.index(1), chains, [&](ValueId, std::span<const ValueId> in) {
    std::vector<ValueId> out;
    for (ValueId chain : in) out.push_back(b.dot_i8(chain, four, factor));
    return out;
  });
  for (int i = 0; i < kChains; ++i) b.store({y, b.index(i * lanes)}, chains[i]);
  return b.finish();
}

// c[m,n] += a[m,k] * b[k,n]; a with a row stride, b a packed panel [k][n].
Kernel gemm(int m, int n, int k_step = 1) {
  Builder b("gemm");
  ValueId a = b.buffer("a", DType::kF32), panel = b.buffer("b", DType::kF32);
  ValueId c = b.buffer("c", DType::kF32);
  ValueId k = b.index_parameter("k"), stride = b.index_parameter("stride");
  ValueId zero = b.constant(DType::kF32, 0, {m, n});
  auto acc = b.loop(b.index(0), k, b.index(k_step), {zero},
                    [&](ValueId i, std::span<const ValueId> in) -> std::vector<ValueId> {
                      ValueId left = b.load({a, i, {stride, b.index(1)}, {}}, {m, k_step});
                      ValueId right = b.load({panel, b.mul(i, b.index(n))}, {k_step, n});
                      return {b.dot(in[0], left, right)};
                    });
  b.store({c, b.index(0)}, acc[0]);
  return b.finish();
}

// y[n] += x[k] * table[nibble]: eight nibbles in a u32, n lanes, one f32 sum per lane.
Kernel nibbles(int n) {
  Builder b("nibbles");
  ValueId w = b.buffer("w", DType::kU32), x = b.buffer("x", DType::kF32);
  ValueId y = b.buffer("y", DType::kF32), k = b.index_parameter("k");
  ValueId table = b.load({y, b.index(0)}, {16});
  auto sums = b.loop(b.index(0), k, b.index(8), {b.constant(DType::kF32, 0, {1, n})},
                     [&](ValueId i, std::span<const ValueId> in) -> std::vector<ValueId> {
                       ValueId at = b.mul(b.div(i, b.index(8)), b.index(n));
                       ValueId word = b.load({w, at}, {1, n});
                       ValueId sum = in[0];
                       for (int j = 0; j < 8; ++j) {
                         ValueId code = b.binary(Fn::kShiftRight, word,
                                                 b.integer_constant(DType::kU32, 4 * j));
                         ValueId value = b.lookup(table, code);
                         ValueId scalar = b.load({x, b.add(i, b.index(j))}, {1, 1});
                         sum = b.dot(sum, scalar, value);
                       }
                       return {sum};
                     });
  b.store({y, b.index(0)}, sums[0]);
  return b.finish();
}

// Measures peak and kernels in turns, in slices short enough that a busy neighbour hits both.
class Meter {
 public:
  explicit Meter(const HostTarget& target)
      : target_(target), chains_(fma_chains(target.lanes_f32()), target) {}

  void report(std::string_view name, double flops, const std::function<void()>& run) {
    constexpr int kTurns = 60;
    constexpr int64_t kSteps = 20000;
    double peak_flops = 2.0 * kChains * target_.lanes_f32() * kSteps;
    std::vector<double> fractions;
    double best = 1e9;
    for (int turn = 0; turn < kTurns; ++turn) {
      double peak = peak_flops / seconds([&] { chains_({y_.data()}, {kSteps}); });
      double took = seconds(run);
      best = std::min(best, took);
      fractions.push_back(flops / took / peak);
    }
    std::ranges::nth_element(fractions, fractions.begin() + kTurns / 2);
    fmt::print("  {}: {:.1f} GFLOP/s, {:.0f} % of the fma peak beside it\n", name,
               flops / best * 1e-9, 100 * fractions[kTurns / 2]);
  }

 private:
  const HostTarget& target_;
  HostKernel chains_;
  Aligned<float> y_{kChains * 16, 0.5f};
};

void report_gemm(Meter& meter, const HostTarget& target, int m, int n, int k_step) {
  constexpr int kDepth = 128, kCalls = 50;
  HostKernel kernel(gemm(m, n, k_step), target);
  Aligned<float> a(static_cast<size_t>(m * kDepth), 0.5f), c(static_cast<size_t>(m * n), 0);
  Aligned<float> panel(static_cast<size_t>(kDepth * n), 0.25f);
  meter.report(fmt::format("gemm {}x{}, {} k a trip", m, n, k_step), 2.0 * m * n * kDepth * kCalls,
               [&] {
                 kernel({a.data(), panel.data(), c.data()}, {kDepth, kDepth}, kCalls);
               });
}

void report_nibbles(Meter& meter, const HostTarget& target, int n) {
  constexpr int kDepth = 512, kCalls = 50;
  HostKernel kernel(nibbles(n), target);
  Aligned<uint32_t> w(static_cast<size_t>(kDepth / 8 * n), 0x76543210);
  Aligned<float> x(kDepth, 0.5f), y(64, 0.25f);
  meter.report(fmt::format("nibbles {}", n), 2.0 * n * kDepth * kCalls, [&] {
    kernel({w.data(), x.data(), y.data()}, {kDepth}, kCalls);
  });
}

void report_bytes(const HostTarget& target) {
  constexpr int64_t kSteps = 20000;
  const int lanes = target.lanes_f32();
  HostKernel chains(byte_chains(lanes), target);
  Aligned<int32_t> y(12 * 16, 1);
  Aligned<int8_t> bytes(64, 3);
  double best = 1e9;
  for (int turn = 0; turn < 60; ++turn) {
    best = std::min(best, seconds([&] { chains({y.data(), bytes.data()}, {kSteps}); }));
  }
  fmt::print("  byte products: {:.0f} GOP/s\n", 2.0 * 12 * 4 * lanes * kSteps / best * 1e-9);
}

void report(const HostTarget& target) {
  fmt::print("{}\n", target.text());
  Meter meter(target);
  int lanes = target.lanes_f32();
  for (int vectors : {1, 2, 3, 4}) {
    for (int m : {4, 6, 8, 12}) {
      if (m * vectors + vectors + 1 > target.vector_registers) continue;
      for (int k_step : {1, 4}) report_gemm(meter, target, m, vectors * lanes, k_step);
    }
  }
  for (int vectors : {1, 2, 4}) report_nibbles(meter, target, vectors * lanes);
  report_bytes(target);
}

}  // namespace
}  // namespace tenon::codegen

int main(int argc, char** argv) {
  using namespace tenon::codegen;
  if (argc > 1 && std::strcmp(argv[1], "--asm") == 0) {
    HostTarget target = detect_host();
    int lanes = target.lanes_f32();
    std::puts(compile_to_text(gemm(6, lanes == 16 ? 64 : 16), target, "asm").c_str());
    std::puts(compile_to_text(nibbles(4 * lanes), target, "asm").c_str());
    return 0;
  }
  for (const HostTarget& target : runnable_targets()) report(target);
}
