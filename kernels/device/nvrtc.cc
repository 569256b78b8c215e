#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/build_id.h"
#include "base/error.h"
#include "kernels/device/assembler.h"
#include "kernels/device/ptx_in_cuda.h"
#include "kernels/device/vendor_library.h"

namespace tenon::device {
namespace {

using ProgramHandle = struct OpaqueNvrtcProgram*;

struct NvrtcFunctions {
#define TENON_NVRTC_FUNCTIONS(F)                                                 \
  F(create, "nvrtcCreateProgram",                                                \
    (ProgramHandle * program, const char* source, const char* name, int headers, \
     const char* const* texts, const char* const* names))                        \
  F(destroy, "nvrtcDestroyProgram", (ProgramHandle * program))                   \
  F(compile, "nvrtcCompileProgram",                                              \
    (ProgramHandle program, int count, const char* const* options))              \
  F(code_size, "nvrtcGetCUBINSize", (ProgramHandle program, size_t * size))      \
  F(code, "nvrtcGetCUBIN", (ProgramHandle program, char* code))                  \
  F(log_size, "nvrtcGetProgramLogSize", (ProgramHandle program, size_t * size))  \
  F(log, "nvrtcGetProgramLog", (ProgramHandle program, char* log))

#define TENON_DECLARE(member, symbol, parameters) int(*member) parameters = nullptr;
  TENON_NVRTC_FUNCTIONS(TENON_DECLARE)
#undef TENON_DECLARE
};

class Nvrtc : public Assembler {
 public:
  explicit Nvrtc(const NvrtcFunctions& functions) : functions_(functions) {}

  MachineCode assemble(std::string_view ptx, std::string_view arch) const override {
    const std::string source = cuda_source_of(ptx);
    ProgramHandle program = nullptr;
    if (const int result =
            functions_.create(&program, source.c_str(), "kernel", 0, nullptr, nullptr);
        result != 0) {
      throw UserError(fmt::format("NVRTC makes no program (error {})", result));
    }
    const struct Destroy {
      const Nvrtc& owner;
      ProgramHandle& program;
      ~Destroy() { owner.functions_.destroy(&program); }
    } destroy{*this, program};

    const std::string option = fmt::format("--gpu-architecture={}", arch);
    const std::array options = {option.c_str()};
    size_t size = 0;
    int result = functions_.compile(program, static_cast<int>(options.size()), options.data());
    if (result == 0) result = functions_.code_size(program, &size);
    std::string code(size, '\0');
    if (result == 0) result = functions_.code(program, code.data());
    if (result != 0 || code.empty()) {
      const std::string why = log_of(program);
      throw UserError(fmt::format("NVRTC made no machine code for {} (error {}): {}", arch, result,
                                  why.empty() ? "it gave no reason" : why));
    }
    return {std::move(code), log_of(program)};
  }

 private:
  std::string log_of(ProgramHandle program) const {
    return words_of(program, functions_.log_size, functions_.log);
  }

  NvrtcFunctions functions_;
};

std::string fill(const VendorLibrary& library, NvrtcFunctions& functions) {
#define TENON_FIND(member, symbol, parameters) \
  if (!library.find(symbol, functions.member)) return "has no function " symbol;
  TENON_NVRTC_FUNCTIONS(TENON_FIND)
#undef TENON_FIND
  return {};
}

AssemblerAnswer load(int newest_major) {
  NvrtcFunctions functions;
  const VendorAnswer answer =
      open_vendor_library(vendor_library_paths(names_of_majors("libnvrtc.so", newest_major)),
                          [&](const VendorLibrary& library) { return fill(library, functions); });
  if (answer.library) {
    return {Support::yes(), new Nvrtc(functions), answer.library->path(),
            build_id(reinterpret_cast<const void*>(functions.create))};
  }
  return {
      Support::no(fmt::format("NVRTC is not installed ({}); the driver assembles kernels that "
                              "deal registers anew instead, one at a time. "
                              "pip install nvidia-cuda-nvrtc",
                              answer.why))};
}

}  // namespace

const AssemblerAnswer& nvrtc(int newest_major) { return loaded_once(load, newest_major); }

}  // namespace tenon::device
