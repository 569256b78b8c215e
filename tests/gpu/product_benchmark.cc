// Prints what the products of packed weights take on a GPU, for the best configs of the ranking and
// not for the chosen one alone. Nothing is asserted about time; runs where TENON_MEASURE is set:
//   TENON_MEASURE="28672x4096x1 4096x4096x256"   these products (N x K x rows)
//   TENON_MEASURE=random:40                      as many random ones, and how good the choice was
//   TENON_MEASURE_SEED=7                         which random ones
//   TENON_MEASURE_CHAIN=1                        as if each product needed the one before
//   TENON_MEASURE_RESIDENT=4                         also as many configs with resident rows
//   TENON_MEASURE_NORMS=1                        with a norm before each, inside of it and apart
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <random>
#include <sstream>

#include <fmt/format.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/build_program.h"
#include "kernels/device/stream.h"
#include "kernels/llvm/scaled_dot/pipelined_dot.h"
#include "kernels/running/device_executable.h"
#include "kernels/selector.h"
#include "tests/conformance/scaled_dot_problem.h"
#include "tests/gpu/captured_time.h"

namespace tenon::kernels {
namespace {

struct Product {
  int64_t n, k, rows;
};

std::vector<Product> wanted_products(const std::string& text) {
  std::vector<Product> products;
  if (text.starts_with("random:")) {
    const char* given = std::getenv("TENON_MEASURE_SEED");
    const unsigned seed = given ? static_cast<unsigned>(std::stoul(given)) : std::random_device{}();
    fmt::print("seed {}\n", seed);
    std::mt19937 random(seed);
    const auto between = [&](double low, double high) {
      return std::exp2(std::uniform_real_distribution(std::log2(low), std::log2(high))(random));
    };
    for (int i = std::stoi(text.substr(7)); i > 0; --i) {
      products.push_back({static_cast<int64_t>(between(512, 32768)),
                          static_cast<int64_t>(between(64, 1024)) * 8,
                          static_cast<int64_t>(between(1, 4096))});
    }
    return products;
  }
  std::istringstream list(text);
  for (std::string item; list >> item;) {
    Product product{};
    if (sscanf(item.c_str(), "%ldx%ldx%ld", &product.n, &product.k, &product.rows) == 3) {
      products.push_back(product);
    }
  }
  return products;
}

class DeviceContext final : public RunContext {
 public:
  DeviceContext(const std::shared_ptr<device::Device>& device, const Product& product,
                device::StreamHandle stream)
      : dims_{product.rows, product.k},
        x_(device, static_cast<size_t>(product.rows * product.k) * 2, "x"),
        y_(device, static_cast<size_t>(product.rows * product.n) * 2, "y"),
        stream_(stream) {}
  Input input(size_t) override { return {reinterpret_cast<void*>(x_.address()), dims_}; }
  void* output(size_t, std::span<const int64_t>) override {
    return reinterpret_cast<void*>(y_.address());
  }
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}
  void* stream() override { return stream_; }
  device::Address x() const { return x_.address(); }

 private:
  std::vector<int64_t> dims_;
  device::Buffer x_, y_;
  device::StreamHandle stream_;
};

class ProductBenchmark : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("TENON_MEASURE") == nullptr) GTEST_SKIP() << "TENON_MEASURE is not set";
    device_ = device::Device::open(0);
    settings_.host = codegen::detect_host();
    settings_.gpu = device_->description().target();
    settings_.tuning.reads_inputs_before_wait = std::getenv("TENON_MEASURE_CHAIN") == nullptr;
    settings_.tuning.neighbours = settings_.tuning.reads_inputs_before_wait;
  }

  // Microseconds of one product; enough copies of the weight that none stays in a cache.
  double time(const ir::Graph& graph, const Product& product, int rank) {
    Settings settings = settings_;
    settings.tuning.rank = rank;
    const double bytes = static_cast<double>(product.n * product.k) * 0.5625;
    const int copies = static_cast<int>(std::clamp(250e6 / bytes, 3.0, 32.0));
    device::Stream stream(device_);
    // Packing is most of the time: all cores.
    std::vector<std::future<std::unique_ptr<Executable>>> built;
    for (int i = 0; i < copies; ++i) {
      built.push_back(std::async(std::launch::async, [&] {
        return build_on_device(graph, settings, device_, {.inputs_ready = true});
      }));
    }
    std::vector<std::unique_ptr<Executable>> executables;
    std::vector<std::unique_ptr<DeviceContext>> contexts;
    for (int i = 0; i < copies; ++i) {
      executables.push_back(built[static_cast<size_t>(i)].get());
      contexts.push_back(std::make_unique<DeviceContext>(device_, product, stream.handle()));
      stream.fill(contexts.back()->x(), 0, static_cast<size_t>(product.rows * product.k) * 2);
      executables.back()->run(*contexts.back());
    }
    stream.synchronize();
    const double all = captured_microseconds(device_, stream, [&] {
      for (size_t i = 0; i < executables.size(); ++i) executables[i]->run(*contexts[i]);
    });
    return all / copies;
  }

  std::shared_ptr<device::Device> device_;
  Settings settings_;
};

const DotForm& nvfp4() { return *std::ranges::find(dot_forms(), "nvfp4", &DotForm::name); }

TEST_F(ProductBenchmark, ChoiceAgainstItsRunnersUp) {
  if (std::getenv("TENON_MEASURE_NORMS") != nullptr) GTEST_SKIP() << "norms are measured";
  const std::vector<Product> products = wanted_products(std::getenv("TENON_MEASURE"));
  const char* tries = std::getenv("TENON_MEASURE_RANKS");
  int good = 0;
  for (const Product& product : products) {
    std::mt19937 random(1);
    const DotProblem problem{nvfp4(), DType::kF16, {product.n, product.k}, DotEnd::kPlain};
    const ir::Graph graph = build_dot(problem, random, product.rows);
    const ir::Node& node = graph.node(graph.order().front());
    const FragmentLayout layout =
        fragment_layout(graph, describe_scaled_dot(graph, node).problem).layout;
    std::vector<GemmConfig> configs = rank_gemm_configs(
        layout, product.rows, settings_.tuning.reads_inputs_before_wait ? kManyLaunches : 0,
        *settings_.gpu);
    const size_t ranked = configs.size();
    std::ranges::copy(rank_resident_configs(layout, product.rows, *settings_.gpu),
                      std::back_inserter(configs));
    const size_t count = std::min<size_t>(ranked, tries ? std::stoul(tries) : 8);
    double chosen = 0, best = 1e30;
    const auto measure = [&](size_t rank) {
      const double microseconds = time(graph, product, static_cast<int>(rank));
      if (rank == 0) chosen = microseconds;
      best = std::min(best, microseconds);
      const double work = static_cast<double>(product.n * product.k);
      fmt::print("{}x{} rows {:5}  #{} {:8.2f} us  {:6.2f} TB/s {:6.1f} TFLOP/s  {}\n", product.n,
                 product.k, product.rows, rank, microseconds, work * 0.5625 / microseconds * 1e-6,
                 2 * work * static_cast<double>(product.rows) / microseconds * 1e-6,
                 configs[rank].planned(layout, product.rows).text());
      std::fflush(stdout);
    };
    for (size_t rank = 0; rank < count; ++rank) measure(rank);
    const char* resident = std::getenv("TENON_MEASURE_RESIDENT");
    const size_t last = std::min(configs.size(), ranked + (resident ? std::stoul(resident) : 0));
    for (size_t rank = ranked; rank < last; ++rank) measure(rank);
    good += chosen <= 1.15 * best ? 1 : 0;
  }
  fmt::print("{} of {} choices are within 1.15 of the best tried\n", good, products.size());
}

// Root mean square of the rows, then the product.
ir::Graph normed_product(const Product& product) {
  std::mt19937 random(1);
  ir::Graph graph;
  const ir::ValueId x = add_rows(graph, DType::kF16, product.k, product.rows);
  const std::vector<double> ones(static_cast<size_t>(product.k), 1.0);
  ir::Node norm;
  norm.op = "RMSNormalization";
  norm.since_version = 23;
  norm.inputs = {x, graph.add_constant("gamma", ir::Tensor::of(DType::kF16, {product.k}, ones))};
  ir::Value rows;
  rows.name = "normed";
  rows.dtype = DType::kF16;
  rows.shape = graph.value(x).shape;
  norm.outputs = {graph.add_value(std::move(rows))};
  const ir::ValueId normed = norm.outputs[0];
  graph.add_node(std::move(norm));
  const DotProblem problem{nvfp4(), DType::kF16, {product.n, product.k}, DotEnd::kPlain};
  graph.add_output(add_dot(graph, normed, problem, random));
  return run_pass("fuse_loops", run_pass("decompose", std::move(graph)));
}

TEST_F(ProductBenchmark, NormsInsideAndApart) {
  if (std::getenv("TENON_MEASURE_NORMS") == nullptr) GTEST_SKIP() << "no norms are measured";
  const char* tries = std::getenv("TENON_MEASURE_RANKS");
  for (const Product& product : wanted_products(std::getenv("TENON_MEASURE"))) {
    const ir::Graph apart = normed_product(product);
    for (const auto& [what, graph] :
         {std::pair{"apart", apart}, std::pair{"inside", run_pass("fuse_prologues", apart)}}) {
      const ir::Node& node = graph.node(graph.order().back());
      for (int rank = 0; rank < (tries ? std::stoi(tries) : 4); ++rank) {
        Settings settings = settings_;
        settings.tuning.rank = rank;
        const Choice choice = select(graph, node, settings);
        const std::string config = choice.lower().configs.front().chosen.text();
        fmt::print("{}x{} rows {:5}  norm {:6}  #{} {:8.2f} us  {}\n", product.n, product.k,
                   product.rows, what, rank, time(graph, product, rank), config);
        std::fflush(stdout);
      }
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
