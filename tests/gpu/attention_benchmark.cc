// Prints what attention takes on a GPU, and checks some rows against float64. Nothing is asserted
// about time; runs where TENON_MEASURE_ATTENTION is set:
//   TENON_MEASURE_ATTENTION="b1x8192 b32x8192"      one query on a cache, batch x keys
//   TENON_MEASURE_ATTENTION="prefill:b4x4096"       as many queries as keys, causal
//   TENON_MEASURE_ATTENTION="b1x4096:h64/8:d64"     other heads than 32 on 8, of another size
// TENON_MEASURE_RANKS=4 tries so many of the shapes that a candidate ranks, not the best alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <sstream>

#include <fmt/format.h>

#include "base/convert.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/build_program.h"
#include "kernels/device/stream.h"
#include "kernels/running/device_executable.h"
#include "tests/gpu/captured_time.h"

namespace tenon::kernels {
namespace {

struct Case {
  int64_t batch = 1, keys = 0, q_heads = 32, kv_heads = 8, depth = 128;
  bool prefill = false;

  int64_t queries() const { return prefill ? keys : 1; }
  int64_t q_elements() const { return batch * q_heads * queries() * depth; }
  int64_t k_elements() const { return batch * kv_heads * keys * depth; }
  double cache_bytes() const { return static_cast<double>(k_elements()) * 4; }
  // Of the half of the scores that a causal mask leaves.
  double operations() const {
    return 2.0 * static_cast<double>(q_elements()) * static_cast<double>(keys);
  }
  ir::Graph graph() const {
    return ir::parse(fmt::format(R"(graph attention {{
  input %q: f16[{0},{1},{2},{5}]
  input %k: f16[{0},{3},{4},{5}]
  input %v: f16[{0},{3},{4},{5}]
  input %lengths: i32[{0}]
  %y: f16[{0},{1},{2},{5}] = tenon::Attention(%q, %k, %v, _, _, _, %lengths) {{causal=1, q_heads={1}, kv_heads={3}}}
  output %y
}})",
                                 batch, q_heads, queries(), kv_heads, keys, depth));
  }
};

std::vector<Case> wanted_cases(std::string text) {
  std::vector<Case> cases;
  std::istringstream list(text);
  for (std::string item; list >> item;) {
    Case wanted;
    std::istringstream parts(item);
    for (std::string part; std::getline(parts, part, ':');) {
      if (part == "prefill") wanted.prefill = true;
      sscanf(part.c_str(), "b%ldx%ld", &wanted.batch, &wanted.keys);
      sscanf(part.c_str(), "h%ld/%ld", &wanted.q_heads, &wanted.kv_heads);
      sscanf(part.c_str(), "d%ld", &wanted.depth);
    }
    EXPECT_GT(wanted.keys, 0) << "expected b<batch>x<keys> in '" << item << "'";
    if (wanted.keys > 0) cases.push_back(wanted);
  }
  return cases;
}

// f16 numbers of either sign between 1/8 and 2, times a power of two.
std::vector<uint16_t> random_halves(int64_t count, unsigned seed, int exponent) {
  std::vector<uint16_t> halves(static_cast<size_t>(count));
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (uint16_t& half : halves) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    half = static_cast<uint16_t>((0x3000 | ((state >> 40) & 0x8fff)) + (exponent << 10));
  }
  return halves;
}

struct Operands {
  std::vector<uint16_t> q, k, v;

  explicit Operands(const Case& c)
      : q(random_halves(c.q_elements(), 1, 1)),
        k(random_halves(c.k_elements(), 2, -1)),
        v(random_halves(c.k_elements(), 3, 0)) {}
};

class DeviceOperands final : public RunContext {
 public:
  DeviceOperands(const std::shared_ptr<device::Device>& device, const Case& c,
                 const Operands& operands, device::Stream& stream)
      : q_dims_{c.batch, c.q_heads, c.queries(), c.depth},
        k_dims_{c.batch, c.kv_heads, c.keys, c.depth},
        lengths_dims_{c.batch},
        q_(device, operands.q.size() * 2, "q"),
        k_(device, operands.k.size() * 2, "k"),
        v_(device, operands.v.size() * 2, "v"),
        y_(device, operands.q.size() * 2, "y"),
        lengths_(device, static_cast<size_t>(c.batch) * 4, "lengths"),
        stream_(stream.handle()) {
    const auto upload = [&](const device::Buffer& to, const void* from, size_t bytes) {
      stream.copy(to.address(), reinterpret_cast<device::Address>(from), bytes);
    };
    upload(q_, operands.q.data(), operands.q.size() * 2);
    upload(k_, operands.k.data(), operands.k.size() * 2);
    upload(v_, operands.v.data(), operands.v.size() * 2);
    const std::vector<int32_t> lengths(static_cast<size_t>(c.batch), static_cast<int32_t>(c.keys));
    upload(lengths_, lengths.data(), lengths.size() * 4);
    stream.fill(y_.address(), 0xff, operands.q.size() * 2);
    stream.synchronize();
  }
  Input input(size_t index) override {
    const device::Buffer* const buffers[] = {&q_, &k_, &v_, &lengths_};
    const std::vector<int64_t>& dims = index == 0 ? q_dims_ : index == 3 ? lengths_dims_ : k_dims_;
    return {reinterpret_cast<void*>(buffers[index]->address()), dims};
  }
  void* output(size_t, std::span<const int64_t>) override {
    return reinterpret_cast<void*>(y_.address());
  }
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}
  void* stream() override { return stream_; }

  std::vector<uint16_t> row(device::Stream& stream, int64_t number) const {
    const auto depth = static_cast<size_t>(q_dims_[3]);
    std::vector<uint16_t> halves(depth);
    stream.copy(reinterpret_cast<device::Address>(halves.data()),
                y_.address() + static_cast<size_t>(number) * depth * 2, depth * 2);
    stream.synchronize();
    return halves;
  }

 private:
  std::vector<int64_t> q_dims_, k_dims_, lengths_dims_;
  device::Buffer q_, k_, v_, y_, lengths_;
  device::StreamHandle stream_;
};

// Row `number` of the result, counted over batch, heads and queries.
std::vector<double> expected_row(const Case& c, const Operands& operands, int64_t number) {
  const auto element = [](const std::vector<uint16_t>& from, int64_t at) {
    return decode(DType::kF16, from[static_cast<size_t>(at)]);
  };
  const int64_t query = number % c.queries(), head = number / c.queries() % c.q_heads;
  const int64_t batch = number / c.queries() / c.q_heads;
  const int64_t kv_head = batch * c.kv_heads + head / (c.q_heads / c.kv_heads);
  const int64_t visible = c.keys - c.queries() + query + 1;
  std::vector<double> scores(static_cast<size_t>(visible)), y(static_cast<size_t>(c.depth));
  for (int64_t key = 0; key < visible; ++key) {
    double sum = 0;
    for (int64_t d = 0; d < c.depth; ++d) {
      sum += element(operands.q, number * c.depth + d) *
             element(operands.k, (kv_head * c.keys + key) * c.depth + d);
    }
    scores[static_cast<size_t>(key)] = sum / std::sqrt(static_cast<double>(c.depth));
  }
  const double top = *std::ranges::max_element(scores);
  double total = 0;
  for (int64_t key = 0; key < visible; ++key) {
    const double weight = std::exp(scores[static_cast<size_t>(key)] - top);
    total += weight;
    for (int64_t d = 0; d < c.depth; ++d) {
      y[static_cast<size_t>(d)] +=
          weight * element(operands.v, (kv_head * c.keys + key) * c.depth + d);
    }
  }
  for (double& each : y) each /= total;
  return y;
}

class AttentionBenchmark : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("TENON_MEASURE_ATTENTION") == nullptr) {
      GTEST_SKIP() << "TENON_MEASURE_ATTENTION is not set";
    }
    device_ = device::Device::open(0);
    settings_.host = codegen::detect_host();
    settings_.gpu = device_->description().target();
  }

  struct Measured {
    double microseconds = 0, error = 0;  // error: the largest, relative to the largest number
    std::string chosen;
  };

  Measured measure(const Case& c, const Operands& operands, int rank) {
    Settings settings = settings_;
    settings.tuning.rank = rank;
    const ir::Graph graph = c.graph();
    // So many that nothing stays in a cache from one turn to the next, and that no launch overlaps
    // its own next one.
    const int copies = static_cast<int>(std::clamp(400e6 / c.cache_bytes(), 4.0, 24.0));
    device::Stream stream(device_);
    std::vector<std::unique_ptr<Executable>> executables;
    std::vector<std::unique_ptr<DeviceOperands>> contexts;
    for (int i = 0; i < copies; ++i) {
      executables.push_back(build_on_device(graph, settings, device_, {.inputs_ready = true}));
      contexts.push_back(std::make_unique<DeviceOperands>(device_, c, operands, stream));
      executables.back()->run(*contexts.back());
    }
    stream.synchronize();
    Measured measured;
    measured.chosen = described(*executables.back());
    measured.microseconds = time(stream, executables, contexts);
    measured.error = error(c, operands, *contexts.back(), stream);
    return measured;
  }

  static std::string described(const Executable& executable) {
    const FusionReport& fusion = executable.fusions().front();
    std::string text = fusion.chosen;
    for (const ConfigChoice& config : fusion.configs) text += ", " + config.chosen.text();
    return text;
  }

  double time(device::Stream& stream, std::span<const std::unique_ptr<Executable>> executables,
              std::span<const std::unique_ptr<DeviceOperands>> contexts) {
    const double all = captured_microseconds(device_, stream, [&] {
      for (size_t i = 0; i < executables.size(); ++i) executables[i]->run(*contexts[i]);
    });
    return all / static_cast<double>(executables.size());
  }

  double error(const Case& c, const Operands& operands, const DeviceOperands& context,
               device::Stream& stream) {
    std::mt19937_64 random(7);
    const int64_t rows = c.batch * c.q_heads * c.queries();
    double largest = 0, worst = 0;
    for (int i = 0; i < 8; ++i) {
      const auto number = static_cast<int64_t>(random() % static_cast<uint64_t>(rows));
      const std::vector<uint16_t> got = context.row(stream, number);
      const std::vector<double> expected = expected_row(c, operands, number);
      for (size_t d = 0; d < got.size(); ++d) {
        const double difference = std::fabs(decode(DType::kF16, got[d]) - expected[d]);
        largest = std::max(largest, std::fabs(expected[d]));
        worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
      }
    }
    return worst / largest;
  }

  std::shared_ptr<device::Device> device_;
  Settings settings_;
};

TEST_F(AttentionBenchmark, TimesAndErrors) {
  const char* tries = std::getenv("TENON_MEASURE_RANKS");
  for (const Case& c : wanted_cases(std::getenv("TENON_MEASURE_ATTENTION"))) {
    const Operands operands(c);
    for (int rank = 0; rank < (tries ? std::atoi(tries) : 1); ++rank) {
      const Measured measured = measure(c, operands, rank);
      const double rate = (c.prefill ? c.operations() : c.cache_bytes()) / measured.microseconds;
      fmt::print("{}b{}x{} {}/{} heads of {}  #{} {:9.2f} us {:7.2f} {}  error {:.1e}  {}\n",
                 c.prefill ? "prefill " : "", c.batch, c.keys, c.q_heads, c.kv_heads, c.depth, rank,
                 measured.microseconds, rate * 1e-6, c.prefill ? "TFLOP/s" : "TB/s", measured.error,
                 measured.chosen);
      std::fflush(stdout);
      EXPECT_LT(measured.error, 5e-3);
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
