#include "kernels/device/linker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/build_id.h"
#include "base/byte_form.h"
#include "base/content_cache.h"
#include "base/error.h"
#include "codegen/compile.h"
#include "kernels/device/kernel_cache.h"
#include "kernels/device/specs.h"
#include "kernels/device/vendor_library.h"

namespace tenon::device {
namespace {

constexpr int kOldestMajor = 12;
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

class NvJitLink : public Linker {
 public:
  explicit NvJitLink(const LinkFunctions& functions) : functions_(functions) {}

  MachineCode link(std::string_view ptx, std::string_view arch) const override {
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
      const std::string why = words(link, functions_.log_size, functions_.log);
      throw UserError(fmt::format("nvJitLink made no machine code for {} (error {}): {}", arch,
                                  result, why.empty() ? "it gave no reason" : why));
    }
    return {std::move(code), words(link, functions_.remarks_size, functions_.remarks)};
  }

 private:
  template <typename Size, typename Text>
  static std::string words(LinkHandle link, const Size& size_of, const Text& text_of) {
    size_t size = 0;
    if (size_of(link, &size) != 0 || size == 0) return {};
    std::string text(size, '\0');
    if (text_of(link, text.data()) != 0) return {};
    text.resize(std::min(text.find('\0'), text.size()));
    return text;
  }

  LinkFunctions functions_;
};

std::string fill(const VendorLibrary& library, LinkFunctions& functions) {
#define TENON_FIND(member, symbol, parameters) \
  if (!library.find(symbol, functions.member)) return "has no function " symbol;
  TENON_LINK_FUNCTIONS(TENON_FIND)
#undef TENON_FIND
  return {};
}

std::string to_bytes(const MachineCode& code) {
  ByteWriter writer;
  writer.text(code.remarks);
  writer.bytes(code.bytes);
  return writer.take();
}

MachineCode from_bytes(std::string_view bytes) {
  ByteReader reader(bytes);
  MachineCode code;
  code.remarks = reader.text();
  code.bytes = reader.bytes(reader.left());
  return code;
}

LinkerAnswer load(int newest_major) {
  std::vector<std::string> names;
  for (int major = newest_major; major >= kOldestMajor; --major) {
    names.push_back(fmt::format("libnvJitLink.so.{}", major));
  }
  LinkFunctions functions;
  const VendorAnswer answer =
      open_vendor_library(vendor_library_paths(names),
                          [&](const VendorLibrary& library) { return fill(library, functions); });
  if (answer.library) {
    return {Support::yes(), new NvJitLink(functions), answer.library->path(),
            build_id(reinterpret_cast<const void*>(functions.create))};
  }
  return {Support::no(fmt::format(
              "nvJitLink is not installed ({}); the driver compiles kernels instead, which takes "
              "longer. pip install nvidia-nvjitlink",
              answer.why)),
          nullptr,
          {},
          {}};
}

}  // namespace

bool deals_registers(std::string_view ptx) { return ptx.find("setmaxnreg") != ptx.npos; }

bool runs_products_in_turn(const MachineCode& code) {
  return code.remarks.find("Performance Loss") != std::string::npos;
}

Digest content_of(const codegen::GpuCode& code) { return sha256(code.entry + '\n' + code.ptx); }

const LinkerAnswer& linker(int newest_major) {
  static auto* const mutex = new std::mutex;
  static auto* const answers = new std::map<int, LinkerAnswer>;
  const std::lock_guard lock(*mutex);
  const auto [entry, is_new] = answers->try_emplace(newest_major);
  if (is_new) entry->second = load(newest_major);
  return entry->second;
}

std::shared_ptr<const MachineCode> link_once(const LinkerAnswer& answer, const Digest& content,
                                             std::string_view ptx, const std::string& arch,
                                             DiskCache* cache) {
  const Digest key = sha256(fmt::format("{} {} {}", hex(content), arch, answer.path));
  return process_cache<MachineCode>().get(key, [&] {
    const Digest on_disk = sha256(fmt::format("machine code, form 1\n{}\n{}\n{}\n-arch={}",
                                              compiler_build(), hex(content), answer.build, arch));
    auto code = std::make_shared<const MachineCode>(
        read_or_make(cache, "cubin", on_disk, from_bytes, to_bytes,
                     [&] { return answer.linker->link(ptx, arch); }));
    const size_t bytes = code->bytes.size();
    return std::pair{std::move(code), bytes};
  });
}

}  // namespace tenon::device
