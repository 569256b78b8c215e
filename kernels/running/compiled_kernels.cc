#include "kernels/running/compiled_kernels.h"

#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/content_cache.h"
#include "base/error.h"
#include "base/stopwatch.h"
#include "codegen/estimate.h"
#include "codegen/gpu_code_bytes.h"
#include "codegen/tile/content.h"
#include "kernels/device/assembler.h"
#include "kernels/device/kernel_cache.h"

namespace tenon::kernels {
namespace {

using codegen::GpuCode;

template <typename Code, typename Make>
Compiled<Code> compile_once(const std::string& key, bool anew, const Make& make) {
  Compiled<Code> compiled;
  compiled.is_shared = true;
  const Stopwatch watch;
  const auto make_now = [&] {
    compiled.is_shared = false;
    return make();
  };
  compiled.code = anew ? make_now().first : process_cache<Code>().get(sha256(key), make_now);
  compiled.milliseconds = watch.milliseconds();
  return compiled;
}

// Without LLVM where the kernel cache has it.
GpuCode read_or_compile(const codegen::Kernel& kernel, int threads,
                        const codegen::GpuTarget& target, const std::string& key,
                        DiskCache* cache) {
  const auto read = [&](std::string_view bytes) {
    GpuCode code = codegen::gpu_code_from_bytes(bytes);
    if (!codegen::fits(code, kernel)) throw UserError("it is another kernel's");
    return code;
  };
  const Digest on_disk =
      sha256(fmt::format("GPU code, form 1\n{}\n{}", device::compiler_build(), key));
  return device::read_or_make(cache, "ptx", on_disk, read, codegen::to_bytes,
                              [&] { return codegen::compile_gpu(kernel, threads, target); });
}

using MadeHostKernel = std::pair<std::shared_ptr<const HostKernel>, size_t>;

// Those of `kernels` whose places `wanted` has.
std::vector<MadeHostKernel> compile_together(std::span<const codegen::Kernel> kernels,
                                             const std::vector<size_t>& wanted,
                                             const codegen::HostTarget& target,
                                             const codegen::StageSink& sink) {
  constexpr size_t kLinkedBytes = 128 << 10;  // about: code, and what the assembler keeps with it
  std::vector<codegen::Kernel> together;
  for (const size_t i : wanted) together.push_back(kernels[i]);
  const auto code = codegen::compile_host(together, target, sink);
  std::vector<MadeHostKernel> made;
  for (const codegen::Kernel& kernel : together) {
    made.emplace_back(
        std::make_shared<const HostKernel>(HostKernel{code, code->function(kernel.name)}),
        kLinkedBytes);
  }
  return made;
}

double weight_of(const codegen::Kernel& kernel) {
  return static_cast<double>(codegen::operation_count(kernel)) + 1;
}

}  // namespace

Compiled<GpuCode> compile_gpu_once(const codegen::Kernel& kernel, const Digest& content,
                                   int threads, const codegen::GpuTarget& target,
                                   const codegen::StageSink& sink, DiskCache* cache) {
  const std::string key =
      fmt::format("{} {} {} {} {} {} {}", hex(content), threads, target.arch, target.shared_bytes,
                  target.sm_count, target.threads, target.pipelines);
  return compile_once<GpuCode>(key, static_cast<bool>(sink), [&] {
    GpuCode made = sink ? codegen::compile_gpu(kernel, threads, target, sink)
                        : read_or_compile(kernel, threads, target, key, cache);
    auto code = std::make_shared<const GpuCode>(std::move(made));
    const size_t bytes = code->ptx.size();
    return std::pair{std::move(code), bytes};
  });
}

std::vector<Compiled<HostKernel>> compile_host_once(std::span<const codegen::Kernel> kernels,
                                                    std::span<const Digest> contents,
                                                    const codegen::HostTarget& target,
                                                    const codegen::StageSink& sink) {
  std::vector<Digest> keys;
  for (const Digest& content : contents) {
    keys.push_back(sha256(fmt::format("{} {}", hex(content), target.text())));
  }
  std::vector<size_t> made_here;
  const auto make = [&](const std::vector<size_t>& missing) {
    made_here = missing;
    return compile_together(kernels, missing, target, sink);
  };
  const Stopwatch watch;
  std::vector<std::shared_ptr<const HostKernel>> codes;
  if (sink) {
    std::vector<size_t> all(kernels.size());
    std::iota(all.begin(), all.end(), size_t{0});
    for (MadeHostKernel& made : make(all)) codes.push_back(std::move(made.first));
  } else {
    codes = process_cache<HostKernel>().get_all(keys, make);
  }
  const double milliseconds = watch.milliseconds();

  std::vector<Compiled<HostKernel>> compiled(kernels.size());
  for (size_t i = 0; i < kernels.size(); ++i) compiled[i] = {std::move(codes[i]), 0, true};
  double operations = 0;
  for (const size_t i : made_here) operations += weight_of(kernels[i]);
  for (const size_t i : made_here) {
    compiled[i].milliseconds = milliseconds * weight_of(kernels[i]) / operations;
    compiled[i].is_shared = false;
  }
  return compiled;
}

void forget_compiled_kernels() {
  process_cache<codegen::Kernel>().clear();
  process_cache<GpuCode>().clear();
  process_cache<codegen::GpuEstimate>().clear();
  process_cache<HostKernel>().clear();
  process_cache<device::MachineCode>().clear();
}

}  // namespace tenon::kernels
