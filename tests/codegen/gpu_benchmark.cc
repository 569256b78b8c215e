// How fast generated kernels move memory and multiply on the GPU of this machine.
#include <cstdio>

#include <array>
#include <cmath>
#include <string_view>

#include "codegen/tile/builder.h"
#include "tests/codegen/gpu_driver.h"

namespace tenon::codegen {
namespace {

constexpr DType kF32 = DType::kF32, kF16 = DType::kF16;

void report(Gpu& gpu, const char* name, const Kernel& kernel, int threads, int64_t tasks,
            const std::vector<size_t>& bytes, const std::vector<int64_t>& indices, double moved,
            double operations) {
  std::vector<std::vector<uint64_t>> buffers;
  for (size_t size : bytes) buffers.emplace_back(size / 8 + 1);
  GpuCode code = compile_gpu(kernel, threads, gpu.target);
  float ms = gpu.run(code, tasks, indices, kernel, buffers, 20);
  printf("%-40s t%-4d %8.3f ms %8.0f GB/s %8.1f TFLOP/s  %lld shared\n", name, threads, ms,
         moved / ms * 1e-6, operations / ms * 1e-9, static_cast<long long>(code.shared_bytes));
}

Kernel pointwise(DType dtype, int tile, bool copy) {
  Builder b("pointwise");
  ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype), n = b.index_parameter("n");
  ValueId at = b.mul(b.task(), b.index(tile)), left = b.sub(n, at);
  ValueId v = b.load({x, at, {}, {left}}, {tile});
  if (!copy) v = b.mul(v, b.add(b.unary(Fn::kErf, v), b.constant(dtype, 1)));
  b.store({y, at, {}, {left}}, v);
  return b.finish();
}

Kernel softmax(DType dtype, int tile) {
  Builder b("softmax");
  ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype), n = b.index_parameter("n");
  ValueId at = b.mul(b.task(), n);
  ValueId row = b.cast(b.load({x, at, {}, {n}}, {tile}, -INFINITY), kF32);
  ValueId high = b.splat(b.reduce(Fn::kMax, row, 0), {tile});
  ValueId power = b.unary(Fn::kExp, b.sub(row, high));
  ValueId sum = b.splat(b.reduce(Fn::kAdd, power, 0), {tile});
  b.store({y, at, {}, {n}}, b.cast(b.binary(Fn::kDiv, power, sum), dtype));
  return b.finish();
}

Kernel layer_norm(DType dtype, int rows, int columns) {
  Builder b("layer_norm");
  ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype), m = b.index_parameter("m");
  ValueId first = b.mul(b.task(), b.index(rows)), at = b.mul(first, b.index(columns));
  ValueId left = b.sub(m, first);
  std::vector<int> shape{rows, columns};
  ValueId in = b.cast(b.load({x, at, {}, {left, kNone}}, shape), kF32);
  auto mean = [&](ValueId v) {
    ValueId sum = b.mul(b.reduce(Fn::kAdd, v, 1), b.constant(kF32, 1.0 / columns));
    return b.broadcast(b.reshape(sum, {rows, 1}), shape);
  };
  ValueId centred = b.sub(in, mean(in));
  ValueId scale = b.unary(Fn::kRsqrt, b.add(mean(b.mul(centred, centred)), b.constant(kF32, 1e-5)));
  b.store({y, at, {}, {left, kNone}}, b.cast(b.mul(centred, scale), dtype));
  return b.finish();
}

Kernel transpose(DType dtype, int tile) {
  Builder b("transpose");
  ValueId x = b.buffer("x", dtype), y = b.buffer("y", dtype), n = b.index_parameter("n");
  ValueId across = b.div(n, b.index(tile)), one = b.index(1);
  ValueId row = b.mul(b.div(b.task(), across), b.index(tile));
  ValueId column = b.mul(b.rem(b.task(), across), b.index(tile));
  ValueId v = b.load({x, b.add(b.mul(row, n), column), {n, one}}, {tile, tile});
  b.store({y, b.add(b.mul(column, n), row), {n, one}}, b.transpose(v));
  return b.finish();
}

Kernel matmul(DType dtype, int m, int n, int k, bool b_transposed) {
  Builder b("matmul");
  ValueId a = b.buffer("a", dtype), w = b.buffer("b", dtype), c = b.buffer("c", kF16);
  ValueId M = b.index_parameter("m"), N = b.index_parameter("n"), K = b.index_parameter("k");
  ValueId one = b.index(1), zero = b.index(0);
  ValueId down = b.div(M, b.index(m));
  ValueId row = b.mul(b.rem(b.task(), down), b.index(m));
  ValueId column = b.mul(b.div(b.task(), down), b.index(n));
  ValueId rows_left = b.sub(M, row), columns_left = b.sub(N, column);
  ValueId sum = b.loop(
      zero, K, b.index(k), {b.constant(kF32, 0, {m, n})},
      [&](ValueId at, std::span<const ValueId> carried) {
        ValueId left = b.sub(K, at);
        ValueId x = b.load({a, b.add(b.mul(row, K), at), {K, one}, {rows_left, left}}, {m, k});
        ValueId y =
            b_transposed
                ? b.transpose(b.load(
                      {w, b.add(b.mul(column, K), at), {K, one}, {columns_left, left}}, {n, k}))
                : b.load({w, b.add(b.mul(at, N), column), {N, one}, {left, columns_left}}, {k, n});
        return std::vector{b.dot(carried[0], x, y)};
      })[0];
  b.store({c, b.add(b.mul(row, N), column), {N, one}, {rows_left, columns_left}},
          b.cast(sum, kF16));
  return b.finish();
}

}  // namespace
}  // namespace tenon::codegen

int main(int argc, char** argv) {
  using namespace tenon::codegen;
  Gpu gpu;
  if (!gpu.present) {
    printf("no NVIDIA GPU or no driver (libcuda.so.1)\n");
    return 0;
  }
  constexpr int64_t kBytes = int64_t{1} << 29;  // of one tensor
  bool products_only = argc > 1 && std::string_view(argv[1]) == "products";
  for (tenon::DType dtype : {kF32, kF16}) {
    if (products_only) break;
    int64_t n = kBytes / (bit_width(dtype) / 8);
    auto text = [&](const char* what, int size) {
      return std::string(what) + " " + std::string(tenon::name(dtype)) + " " + std::to_string(size);
    };
    auto rows = [&](const char* what, const Kernel& kernel, int threads, int64_t tasks,
                    int64_t index, int size) {
      report(gpu, text(what, size).c_str(), kernel, threads, tasks, {kBytes, kBytes}, {index},
             2.0 * kBytes, 0);
    };
    for (int tile : {512, 1024, 2048, 4096}) {
      for (int threads : {128, 256}) {
        rows("copy", pointwise(dtype, tile, true), threads, n / tile, n, tile);
        rows("gelu", pointwise(dtype, tile, false), threads, n / tile, n, tile);
      }
    }
    for (int columns : {512, 1000, 4096}) {
      int tile = columns == 1000 ? 1024 : columns;
      rows("softmax", softmax(dtype, tile), 128, n / columns, columns, columns);
      rows("softmax", softmax(dtype, tile), 256, n / columns, columns, columns);
    }
    rows("layer_norm of 4 rows", layer_norm(dtype, 4, 768), 128, n / 768 / 4, n / 768, 768);
    rows("layer_norm of 1 row", layer_norm(dtype, 1, 4096), 256, n / 4096, n / 4096, 4096);
    rows("transpose", transpose(dtype, 64), 256, 8192 / 64 * (8192 / 64), 8192, 64);
  }
  for (bool transposed : {false, true}) {
    for (auto [m, n, k, threads] : {std::array{128, 128, 32, 256},
                                    {128, 128, 64, 256},
                                    {128, 128, 32, 128},
                                    {64, 64, 64, 128},
                                    {128, 64, 64, 128}}) {
      int64_t size = 4096;
      std::string name = "matmul " + std::to_string(m) + "x" + std::to_string(n) + "x" +
                         std::to_string(k) + (transposed ? " nt" : " nn");
      size_t bytes = static_cast<size_t>(size * size * 2);
      report(gpu, name.c_str(), matmul(kF16, m, n, k, transposed), threads, size / m * (size / n),
             {bytes, bytes, bytes}, {size, size, size}, 3.0 * static_cast<double>(bytes),
             2.0 * std::pow(static_cast<double>(size), 3));
    }
  }
}
