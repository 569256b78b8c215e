#include "kernels/compile_launches.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/byte_form.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "codegen/tile/content.h"
#include "codegen/tile/product_loops.h"
#include "codegen/tile/text.h"
#include "kernels/running/compiled_kernels.h"

namespace tenon::kernels {
namespace {

struct UniqueKernels {
  std::vector<codegen::Kernel> kernels;
  std::vector<Digest> contents;
  std::vector<int> threads;
  std::vector<std::pair<size_t, size_t>> of_launches;  // a launch, and its kernel

  // The largest first, so that no core ends with one that it began last.
  std::vector<size_t> order() const {
    std::vector<size_t> weights, order(kernels.size());
    for (const codegen::Kernel& kernel : kernels) {
      weights.push_back(codegen::operation_count(kernel));
    }
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return weights[a] > weights[b]; });
    return order;
  }
};

// Two launches share code when their kernels print alike but for the name, and CTAs are alike.
UniqueKernels deduplicate(std::vector<LaunchKernel> kernels, const Program& program) {
  std::vector<Digest> contents(kernels.size());
  parallel_for_each(static_cast<int64_t>(kernels.size()),
                    [&](int64_t i) { contents[i] = codegen::content_of(kernels[i].kernel); });
  UniqueKernels unique;
  std::map<std::pair<Digest, int>, size_t> seen;
  for (size_t i = 0; i < kernels.size(); ++i) {
    auto& [launch, kernel] = kernels[i];
    const int threads = program.launches[launch].threads;
    const auto [place, inserted] = seen.try_emplace({contents[i], threads}, unique.kernels.size());
    unique.of_launches.emplace_back(launch, place->second);
    if (!inserted) continue;
    kernel.name = fmt::format("{}_{}", kernel.name, unique.kernels.size());
    unique.kernels.push_back(std::move(kernel));
    unique.contents.push_back(contents[i]);
    unique.threads.push_back(threads);
  }
  // One core takes longer to free the others than all cores to tell them apart.
  parallel_for_each(static_cast<int64_t>(kernels.size()),
                    [&](int64_t i) { kernels[i].kernel = {}; });
  return unique;
}

UniqueKernels saved(std::vector<codegen::Kernel> kernels, std::vector<int> threads,
                    const Program& program) {
  UniqueKernels unique;
  unique.contents.resize(kernels.size());
  parallel_for_each(static_cast<int64_t>(kernels.size()),
                    [&](int64_t i) { unique.contents[i] = codegen::content_of(kernels[i]); });
  unique.kernels = std::move(kernels);
  unique.threads = std::move(threads);
  for (size_t i = 0; i < program.launches.size(); ++i) {
    const CompiledLaunch& launch = program.launches[i];
    if (launch.kind == LaunchKind::kKernel) unique.of_launches.emplace_back(i, launch.kernel);
  }
  return unique;
}

void name_kernels(const UniqueKernels& unique, Program& program) {
  for (const auto& [launch, kernel] : unique.of_launches) program.launches[launch].kernel = kernel;
  if (!program.texts) return;
  program.texts->kernels.clear();
  for (size_t i = 0; i < unique.kernels.size(); ++i) {
    program.texts->kernels.push_back({codegen::print(unique.kernels[i]), unique.threads[i]});
  }
}

// Reports of launches stand in the order of their fusions; of those that are no kernels they have
// their names already.
void name_reported(const UniqueKernels& unique, Program& program) {
  std::vector<std::string> names(program.launches.size());
  for (const auto& [launch, kernel] : unique.of_launches)
    names[launch] = unique.kernels[kernel].name;
  auto name = names.begin();
  for (FusionReport& fusion : program.fusions) {
    for (LaunchReport& launch : fusion.launches) {
      if (!name->empty()) launch.kernel = *name;
      ++name;
    }
  }
}

// The caller's sink need not be thread-safe.
codegen::StageSink serialized(const codegen::StageSink& sink, std::mutex& mutex) {
  if (!sink) return {};
  return [&](std::string_view kernel, std::string_view stage, std::string_view text) {
    const std::lock_guard lock(mutex);
    sink(kernel, stage, text);
  };
}

// On all cores; `compile(i, sink)` compiles one kernel.
template <typename Code, typename Compile>
std::vector<std::shared_ptr<const Code>> compile_all(const UniqueKernels& unique,
                                                     const codegen::StageSink& sink,
                                                     Program& program, const Compile& compile) {
  std::mutex sink_mutex;
  const codegen::StageSink shared_sink = serialized(sink, sink_mutex);
  const std::vector<size_t> order = unique.order();
  std::vector<std::shared_ptr<const Code>> code(order.size());
  program.kernels.resize(order.size());
  parallel_for_each(static_cast<int64_t>(order.size()), [&](int64_t next) {
    const size_t i = order[next];
    Compiled<Code> compiled = compile(i, shared_sink);
    program.kernels[i] = {unique.kernels[i].name, compiled.milliseconds, compiled.is_shared};
    code[i] = std::move(compiled.code);
  });
  return code;
}

// What is compiled in one go shares the loops of products that its kernels have in common: those
// with the same ones stay together. By the kernel that each is with, its own number or an earlier
// one.
std::vector<size_t> families(const UniqueKernels& unique) {
  std::vector<size_t> first(unique.kernels.size());
  std::map<Digest, size_t> who_has;
  for (size_t i = 0; i < unique.kernels.size(); ++i) {
    first[i] = i;
    for (const codegen::ProductLoop& loop : codegen::product_loops(unique.kernels[i])) {
      const auto [place, is_new] = who_has.try_emplace(codegen::content_of(loop.kernel), first[i]);
      if (!is_new && first[i] == i) first[i] = place->second;
    }
  }
  return first;
}

// For as many threads as the target has, about equally much for each: the largest family goes to
// who has least so far.
std::vector<std::vector<size_t>> deal(const UniqueKernels& unique, int threads) {
  const std::vector<size_t> first = families(unique);
  std::map<size_t, std::vector<size_t>> members;
  std::map<size_t, size_t> sizes;
  for (size_t i = 0; i < first.size(); ++i) {
    members[first[i]].push_back(i);
    sizes[first[i]] += codegen::operation_count(unique.kernels[i]);
  }
  std::vector<std::pair<size_t, size_t>> order;  // operations, and whose family
  for (const auto& [family, size] : sizes) order.emplace_back(size, family);
  std::ranges::stable_sort(order, std::greater<>{}, [](const auto& one) { return one.first; });
  std::vector<std::vector<size_t>> hands(
      std::clamp<size_t>(order.size(), 1, static_cast<size_t>(std::max(threads, 1))));
  std::vector<size_t> loads(hands.size());
  for (const auto& [size, family] : order) {
    const auto least = std::ranges::min_element(loads) - loads.begin();
    std::ranges::copy(members[family], std::back_inserter(hands[least]));
    loads[least] += size;
  }
  return hands;
}

void compile(const UniqueKernels& unique, const codegen::HostTarget& target,
             const codegen::StageSink& sink, Program& program) {
  std::mutex sink_mutex;
  const codegen::StageSink stages = serialized(sink, sink_mutex);
  const std::vector<std::vector<size_t>> hands = deal(unique, target.threads);
  std::vector<HostKernel> compiled(unique.kernels.size());
  program.kernels.resize(unique.kernels.size());
  parallel_for_each(static_cast<int64_t>(hands.size()), [&](int64_t hand) {
    std::vector<codegen::Kernel> kernels;
    std::vector<Digest> contents;
    for (const size_t i : hands[hand]) {
      kernels.push_back(unique.kernels[i]);
      contents.push_back(unique.contents[i]);
    }
    const auto made = compile_host_once(kernels, contents, target, stages);
    for (size_t place = 0; place < made.size(); ++place) {
      const size_t i = hands[hand][place];
      compiled[i] = *made[place].code;
      program.kernels[i] = {unique.kernels[i].name, made[place].milliseconds,
                            made[place].is_shared};
    }
  });
  for (const HostKernel& kernel : compiled) program.code.push_back(kernel.code);
  for (const auto& [launch, kernel] : unique.of_launches) {
    program.launches[launch].function = compiled[kernel].function;
  }
}

void compile(const UniqueKernels& unique, const codegen::GpuTarget& target,
             const codegen::StageSink& sink, DiskCache* cache, Program& program) {
  program.gpu_code =
      compile_all<codegen::GpuCode>(unique, sink, program, [&](size_t i, auto& stages) {
        return compile_gpu_once(unique.kernels[i], unique.contents[i], unique.threads[i], target,
                                stages, cache);
      });
}

}  // namespace

Digest lowering_of(const std::vector<LaunchKernel>& kernels, const Program& program) {
  ByteWriter writer;
  for (const Slot& slot : program.slots) {
    writer.number(static_cast<uint8_t>(slot.kind));
    writer.number(uint64_t{slot.index});
    writer.text(slot.bytes.text());
    writer.text(slot.name);
  }
  for (const CompiledLaunch& launch : program.launches) {
    writer.number(static_cast<uint8_t>(launch.kind));
    writer.text(launch.node);
    writer.text(launch.tasks.text());
    for (const size_t slot : launch.slots) writer.number(uint64_t{slot});
    for (const Dim& index : launch.indices) writer.text(index.text());
  }
  std::vector<Digest> contents(kernels.size());
  parallel_for_each(static_cast<int64_t>(kernels.size()),
                    [&](int64_t i) { contents[i] = codegen::content_of(kernels[i].kernel); });
  for (size_t i = 0; i < kernels.size(); ++i) {
    writer.number(uint64_t{kernels[i].launch});
    writer.bytes({reinterpret_cast<const char*>(contents[i].data()), contents[i].size()});
  }
  return sha256(writer.take());
}

void compile_launches(std::vector<LaunchKernel> kernels, const codegen::HostTarget& target,
                      const codegen::StageSink& sink, Program& program) {
  const UniqueKernels unique = deduplicate(std::move(kernels), program);
  compile(unique, target, sink, program);
  name_kernels(unique, program);
  name_reported(unique, program);
}

void interpret_launches(std::vector<LaunchKernel> kernels, const codegen::StageSink& sink,
                        Program& program) {
  for (auto& [launch, kernel] : kernels) {
    if (sink) sink(kernel.name, "tile", codegen::print(kernel));
    program.launches[launch].interpreted =
        std::make_shared<const codegen::Kernel>(std::move(kernel));
  }
}

void compile_gpu_launches(std::vector<LaunchKernel> kernels, const codegen::GpuTarget& target,
                          const codegen::StageSink& sink, DiskCache* cache, Program& program) {
  const UniqueKernels unique = deduplicate(std::move(kernels), program);
  compile(unique, target, sink, cache, program);
  name_kernels(unique, program);
}

void compile_saved_kernels(std::vector<codegen::Kernel> kernels, const codegen::HostTarget& target,
                           Program& program) {
  std::vector<int> threads(kernels.size(), 0);
  compile(saved(std::move(kernels), std::move(threads), program), target, {}, program);
}

void compile_saved_gpu_kernels(std::vector<codegen::Kernel> kernels, std::vector<int> threads,
                               const codegen::GpuTarget& target, DiskCache* cache,
                               Program& program) {
  compile(saved(std::move(kernels), std::move(threads), program), target, {}, cache, program);
}

}  // namespace tenon::kernels
