#include "kernels/running/pack_kernels.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/thread_pool.h"
#include "codegen/tile/content.h"
#include "kernels/running/compiled_kernels.h"

namespace tenon::kernels {

std::vector<std::shared_ptr<const codegen::Kernel>> PackKernels::all_of(const Program& program) {
  std::set<std::shared_ptr<const codegen::Kernel>> kernels;
  for (const Slot& slot : program.slots) {
    for (const DevicePacking::Piece& piece : slot.on_device.pieces) kernels.insert(piece.kernel);
  }
  return {kernels.begin(), kernels.end()};
}

PackKernels::PackKernels(std::vector<std::shared_ptr<const codegen::Kernel>> kernels,
                         device::Device& device, const codegen::GpuTarget& target, DiskCache* cache)
    : kernels_(std::move(kernels)) {
  std::map<Digest, std::vector<const codegen::Kernel*>> equal;
  for (const auto& kernel : kernels_) equal[codegen::content_of(*kernel)].push_back(kernel.get());
  std::vector<std::pair<Digest, std::shared_ptr<const device::LoadedKernel>>> unique;
  for (const auto& [content, kernels] : equal) unique.emplace_back(content, nullptr);
  parallel_for_each(static_cast<int64_t>(unique.size()), [&](int64_t i) {
    auto& [content, loaded] = unique[static_cast<size_t>(i)];
    try {
      const auto compiled = compile_gpu_once(*equal.at(content).front(), content,
                                             DevicePacking::kThreads, target, {}, cache);
      loaded = device.load(*compiled.code, cache);
    } catch (const std::exception&) {
      // The host packs; a device that is lost says so at the next call.
    }
  });
  for (const auto& [content, loaded] : unique) {
    for (const codegen::Kernel* kernel : equal.at(content)) loaded_[kernel] = loaded;
  }
}

bool PackKernels::can_make(const DevicePacking& packing) const {
  return !packing.pieces.empty() && std::ranges::all_of(packing.pieces, [&](const auto& piece) {
    const auto found = loaded_.find(piece.kernel.get());
    return found != loaded_.end() && found->second != nullptr;
  });
}

}  // namespace tenon::kernels
