#include "kernels/running/compiled_kernels.h"

#include <utility>

#include <fmt/format.h>

#include "base/content_cache.h"
#include "base/error.h"
#include "base/stopwatch.h"
#include "codegen/estimate.h"
#include "codegen/gpu_code_bytes.h"
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

Compiled<HostKernel> compile_host_once(const codegen::Kernel& kernel, const Digest& content,
                                       const codegen::HostTarget& target,
                                       const codegen::StageSink& sink) {
  constexpr size_t kLinkedBytes = 128 << 10;  // about: code, and what the assembler keeps with it
  const std::string key = fmt::format("{} {}", hex(content), target.text());
  return compile_once<HostKernel>(key, static_cast<bool>(sink), [&] {
    auto code = codegen::compile_host({&kernel, 1}, target, sink);
    const codegen::HostFunction function = code->function(kernel.name);
    return std::pair{std::make_shared<const HostKernel>(HostKernel{std::move(code), function}),
                     kLinkedBytes};
  });
}

void forget_compiled_kernels() {
  process_cache<codegen::Kernel>().clear();
  process_cache<GpuCode>().clear();
  process_cache<codegen::GpuEstimate>().clear();
  process_cache<HostKernel>().clear();
  process_cache<device::MachineCode>().clear();
}

}  // namespace tenon::kernels
