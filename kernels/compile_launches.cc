#include "kernels/compile_launches.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "base/thread_pool.h"
#include "codegen/tile/text.h"

namespace tenon::kernels {
namespace {

size_t count_operations(const codegen::Region& region) {
  size_t count = region.operations.size();
  for (const codegen::Operation& operation : region.operations) {
    for (const codegen::Region& inner : operation.regions) count += count_operations(inner);
  }
  return count;
}

struct UniqueKernels {
  std::vector<codegen::Kernel> kernels;
  std::vector<size_t> of_launch;  // index into kernels
};

// Two launches share code when their kernels print alike but for the name, and blocks are alike.
UniqueKernels deduplicate(std::vector<codegen::Kernel> kernels, const Program& program) {
  UniqueKernels unique;
  std::map<std::pair<Digest, int>, size_t> seen;
  for (size_t launch = 0; launch < kernels.size(); ++launch) {
    codegen::Kernel& kernel = kernels[launch];
    std::string name = std::exchange(kernel.name, "kernel");
    const auto [place, inserted] = seen.try_emplace(
        {sha256(codegen::print(kernel)), program.launches[launch].threads}, unique.kernels.size());
    unique.of_launch.push_back(place->second);
    if (!inserted) continue;
    kernel.name = fmt::format("{}_{}", name, unique.kernels.size());
    unique.kernels.push_back(std::move(kernel));
  }
  return unique;
}

// Kernel indices in `groups` piles of about equal work.
std::vector<std::vector<size_t>> balance(const std::vector<codegen::Kernel>& kernels,
                                         size_t groups) {
  std::vector<size_t> weights, order(kernels.size());
  for (const codegen::Kernel& kernel : kernels) weights.push_back(count_operations(kernel.body));
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  std::vector<std::vector<size_t>> piles(groups);
  std::vector<size_t> load(groups, 0);
  for (size_t kernel : order) {
    const size_t lightest = std::min_element(load.begin(), load.end()) - load.begin();
    piles[lightest].push_back(kernel);
    load[lightest] += weights[kernel];
  }
  return piles;
}

// The caller's sink need not be thread-safe.
codegen::StageSink serialized(const codegen::StageSink& sink, std::mutex& mutex) {
  if (!sink) return {};
  return [&](std::string_view kernel, std::string_view stage, std::string_view text) {
    const std::lock_guard lock(mutex);
    sink(kernel, stage, text);
  };
}

}  // namespace

void compile_launches(std::vector<codegen::Kernel> kernels, const codegen::HostTarget& target,
                      const codegen::StageSink& sink, Program& program) {
  UniqueKernels unique = deduplicate(std::move(kernels), program);
  if (unique.kernels.empty()) return;
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const auto piles = balance(unique.kernels, std::min(cores, unique.kernels.size()));

  std::mutex sink_mutex;
  const codegen::StageSink shared_sink = serialized(sink, sink_mutex);
  std::vector<codegen::HostFunction> functions(unique.kernels.size());
  program.code.resize(piles.size());
  parallel_for_each(static_cast<int64_t>(piles.size()), [&](int64_t pile) {
    std::vector<codegen::Kernel> group;
    for (size_t kernel : piles[pile]) group.push_back(unique.kernels[kernel]);
    program.code[pile] = codegen::compile_host(group, target, shared_sink);
    for (size_t kernel : piles[pile]) {
      functions[kernel] = program.code[pile]->function(unique.kernels[kernel].name);
    }
  });
  for (size_t launch = 0; launch < program.launches.size(); ++launch) {
    program.launches[launch].function = functions[unique.of_launch[launch]];
  }
}

void interpret_launches(std::vector<codegen::Kernel> kernels, const codegen::StageSink& sink,
                        Program& program) {
  for (size_t launch = 0; launch < kernels.size(); ++launch) {
    if (sink) sink(kernels[launch].name, "tile", codegen::print(kernels[launch]));
    program.launches[launch].interpreted =
        std::make_shared<const codegen::Kernel>(std::move(kernels[launch]));
  }
}

void compile_gpu_launches(std::vector<codegen::Kernel> kernels, const codegen::GpuTarget& target,
                          const codegen::StageSink& sink, Program& program) {
  const UniqueKernels unique = deduplicate(std::move(kernels), program);
  std::vector<int> threads(unique.kernels.size());
  for (size_t launch = 0; launch < program.launches.size(); ++launch) {
    program.launches[launch].gpu_code = unique.of_launch[launch];
    threads[unique.of_launch[launch]] = program.launches[launch].threads;
  }
  std::mutex sink_mutex;
  const codegen::StageSink shared_sink = serialized(sink, sink_mutex);
  program.gpu_code.resize(unique.kernels.size());
  parallel_for_each(static_cast<int64_t>(unique.kernels.size()), [&](int64_t kernel) {
    program.gpu_code[kernel] =
        codegen::compile_gpu(unique.kernels[kernel], threads[kernel], target, shared_sink);
  });
}

}  // namespace tenon::kernels
