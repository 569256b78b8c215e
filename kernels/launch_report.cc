#include "kernels/launch_report.h"

#include <algorithm>
#include <exception>
#include <set>

#include "codegen/host_instructions.h"
#include "kernels/running/shape_instance.h"

namespace tenon::kernels {
namespace {

// Rows of a product of many, where the model leaves their number open.
constexpr int64_t kManyRows = 128;

template <typename Is>
bool has_operation(const codegen::Region& region, const Is& is) {
  return std::ranges::any_of(region.operations, [&](const codegen::Operation& operation) {
    return is(operation) ||
           std::ranges::any_of(operation.regions, [&](const codegen::Region& inner) {
             return has_operation(inner, is);
           });
  });
}

class LaunchDescriber {
 public:
  LaunchDescriber(const Lowered& lowered, const SymbolBinding& binding,
                  const codegen::HostTarget& host)
      : lowered_(lowered), binding_(binding), host_(host) {
    for (const Launch& launch : lowered.launches) {
      if (launch.product) rows_ = launch.product->rows;
    }
  }

  LaunchReport describe(const Launch& launch) const {
    LaunchReport report;
    if (launch.kind() != LaunchKind::kKernel) {
      report.kernel = launch.call ? launch.call->name() : std::string(name(launch.kind()));
      return report;
    }
    report.kernel = launch.kernel.name;
    report.isa = isa_of(launch.kernel, host_);
    if (launch.product) {
      report.tile_rows = launch.product->tile_rows;
      report.tile_columns = launch.product->tile_columns;
      report.weight_bytes = weight_bytes(launch);
    }
    std::vector<int64_t> sizes(binding_.symbols().size(), 1);
    add_work(launch, sizes, report);
    if (set_many_rows(sizes)) add_work(launch, sizes, report);
    return report;
  }

 private:
  int64_t weight_bytes(const Launch& launch) const {
    std::set<int32_t> packed;
    for (const BufferArgument& buffer : launch.buffers) {
      if (buffer.kind == BufferArgument::Kind::kPacked) packed.insert(buffer.id);
    }
    int64_t bytes = 0;
    for (const int32_t id : packed) bytes += static_cast<int64_t>(lowered_.packed.at(id).bytes);
    return bytes;
  }

  // Through the first symbol that the rows depend on; false where there is none.
  bool set_many_rows(std::vector<int64_t>& sizes) const {
    std::vector<std::string> used;
    rows_.collect_symbols(used);
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (std::ranges::find(used, binding_.symbols()[i]) == used.end()) continue;
      sizes[i] = kManyRows;
      return true;
    }
    return false;
  }

  void add_work(const Launch& launch, const std::vector<int64_t>& sizes,
                LaunchReport& report) const {
    try {
      const LaunchReport::Work work = work_at(launch, sizes);
      if (work.tasks > 0) report.work.push_back(work);
    } catch (const std::exception&) {
      return;  // a model may rule such sizes out
    }
  }

  LaunchReport::Work work_at(const Launch& launch, const std::vector<int64_t>& sizes) const {
    LaunchReport::Work work;
    work.tasks = binding_.evaluate(launch.tasks, sizes);
    if (work.tasks <= 0) return work;
    work.rows = binding_.evaluate(rows_, sizes);
    if (launch.product) work.flops = binding_.evaluate(launch.product->flops, sizes);
    const int64_t cost = binding_.evaluate(launch.task_cost, sizes);
    const bool shares = count_pieces(work.tasks, cost, host_.threads) > 1;
    const int64_t threads = shares ? std::min<int64_t>(work.tasks, host_.threads) : 1;
    const auto rounds = (work.tasks + threads - 1) / threads;
    work.compute_us = static_cast<double>(rounds) * static_cast<double>(cost) / 1e3;
    return work;
  }

  const Lowered& lowered_;
  const SymbolBinding& binding_;
  const codegen::HostTarget& host_;
  Dim rows_;  // 0 where nothing is multiplied
};

}  // namespace

std::string isa_of(const codegen::Kernel& kernel, const codegen::HostTarget& host) {
  const auto contains = [&](codegen::Op op) {
    return has_operation(kernel.body,
                         [&](const codegen::Operation& operation) { return operation.op == op; });
  };
  if (contains(codegen::Op::kTileDot) && host.has("amx-bf16")) return "amx-bf16";
  const bool bytes = contains(codegen::Op::kDotI8);
  if (host.arch == codegen::HostArch::kAArch64) {
    const auto is_matrices = [&](const codegen::Operation& operation) {
      return codegen::multiplies_byte_matrices(kernel, operation, host);
    };
    if (has_operation(kernel.body, is_matrices)) return "i8mm";
    return bytes && host.has("dotprod") ? "dotprod" : "neon";
  }
  if (bytes) {
    for (const char* feature : {"avx512vnni", "avx512bw", "avxvnni"}) {
      if (host.has(feature)) return feature;
    }
  }
  return host.has("avx512f") ? "avx512f" : host.has("avx2") ? "avx2" : "sse2";
}

std::vector<LaunchReport> describe_launches(const Lowered& lowered, const SymbolBinding& binding,
                                            const codegen::HostTarget& host) {
  const LaunchDescriber describer(lowered, binding, host);
  std::vector<LaunchReport> reports;
  for (const Launch& launch : lowered.launches) reports.push_back(describer.describe(launch));
  return reports;
}

}  // namespace tenon::kernels
