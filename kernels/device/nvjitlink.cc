#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/build_id.h"
#include "base/error.h"
#include "kernels/device/assembler.h"
#include "kernels/device/specs.h"
#include "kernels/device/vendor_library.h"

namespace tenon::device {
namespace {

constexpr int kPtxInput = 2;

using LinkHandle = struct OpaqueLink*;

struct LinkFunctions {
#define TENON_LINK_FUNCTIONS(F)                                                           \
  F(create, "nvJitLinkCreate", (LinkHandle * link, uint32_t count, const char** options)) \
  F(destroy, "nvJitLinkDestroy", (LinkHandle * link))                                     \
  F(add_data, "nvJitLinkAddData",                                                         \
    (LinkHandle link, int kind, const void* data, size_t size, const char* name))         \
  F(complete, "nvJitLinkComplete", (LinkHandle link))                                     \
  F(code_size, "nvJitLinkGetLinkedCubinSize", (LinkHandle link, size_t * size))           \
  F(code, "nvJitLinkGetLinkedCubin", (LinkHandle link, void* code))                       \
  F(log_size, "nvJitLinkGetErrorLogSize", (LinkHandle link, size_t * size))               \
  F(log, "nvJitLinkGetErrorLog", (LinkHandle link, char* log))                            \
  F(remarks_size, "nvJitLinkGetInfoLogSize", (LinkHandle link, size_t * size))            \
  F(remarks, "nvJitLinkGetInfoLog", (LinkHandle link, char* log))

#define TENON_DECLARE(member, symbol, parameters) int(*member) parameters = nullptr;
  TENON_LINK_FUNCTIONS(TENON_DECLARE)
#undef TENON_DECLARE
};

class NvJitLink : public Assembler {
 public:
  explicit NvJitLink(const LinkFunctions& functions) : functions_(functions) {}

  MachineCode assemble(std::string_view ptx, std::string_view arch) const override {
    // Some names that are none, nvJitLink 13.0 answers with exit(): it is never asked about those.
    if (std::ranges::find(specs(), arch, &Spec::arch) == specs().end()) {
      throw UserError(fmt::format("no GPU architecture '{}' is known", arch));
    }
    const std::string option = fmt::format("-arch={}", arch);
    const char* options[] = {option.c_str()};
    LinkHandle link = nullptr;
    if (const int result = functions_.create(&link, 1, options); result != 0) {
      throw UserError(
          fmt::format("nvJitLink does not know {} (error {}): update it", arch, result));
    }
    const struct Destroy {
      const NvJitLink& owner;
      LinkHandle& link;
      ~Destroy() { owner.functions_.destroy(&link); }
    } destroy{*this, link};

    // With the closing zero: nvJitLink reads PTX as a C string.
    const std::string text(ptx);
    size_t size = 0;
    int result = functions_.add_data(link, kPtxInput, text.c_str(), text.size() + 1, "kernel");
    if (result == 0) result = functions_.complete(link);
    if (result == 0) result = functions_.code_size(link, &size);
    std::string code(size, '\0');
    if (result == 0) result = functions_.code(link, code.data());
    if (result != 0) {
      const std::string why = words_of(link, functions_.log_size, functions_.log);
      throw UserError(fmt::format("nvJitLink made no machine code for {} (error {}): {}", arch,
                                  result, why.empty() ? "it gave no reason" : why));
    }
    return {std::move(code), words_of(link, functions_.remarks_size, functions_.remarks)};
  }

 private:
  LinkFunctions functions_;
};

std::string fill(const VendorLibrary& library, LinkFunctions& functions) {
#define TENON_FIND(member, symbol, parameters) \
  if (!library.find(symbol, functions.member)) return "has no function " symbol;
  TENON_LINK_FUNCTIONS(TENON_FIND)
#undef TENON_FIND
  return {};
}

AssemblerAnswer load(int newest_major) {
  LinkFunctions functions;
  const VendorAnswer answer =
      open_vendor_library(vendor_library_paths(names_of_majors("libnvJitLink.so", newest_major)),
                          [&](const VendorLibrary& library) { return fill(library, functions); });
  if (answer.library) {
    return {Support::yes(), new NvJitLink(functions), answer.library->path(),
            build_id(reinterpret_cast<const void*>(functions.create))};
  }
  return {Support::no(fmt::format(
      "nvJitLink is not installed ({}); the driver compiles kernels instead, which takes "
      "longer. pip install nvidia-nvjitlink",
      answer.why))};
}

}  // namespace

const AssemblerAnswer& nvjitlink(int newest_major) { return loaded_once(load, newest_major); }

}  // namespace tenon::device
