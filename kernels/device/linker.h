// PTX to machine code in this process, by nvJitLink where it is installed (vendor_library.h says
// where it is looked for). Needs no GPU.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/support.h"

namespace tenon {
class DiskCache;
}
namespace tenon::codegen {
struct GpuCode;
}

namespace tenon::device {

struct MachineCode {
  std::string bytes;
  std::string remarks;  // of the linker
};

// nvJitLink compiles a unit that others might call: it does not deal registers anew (setmaxnreg),
// and where a division is a call it runs asynchronous products one after the other, and says so.
// Such kernels are left to the driver.
bool deals_registers(std::string_view ptx);
bool runs_products_in_turn(const MachineCode& code);

class Linker {
 public:
  virtual ~Linker() = default;
  // Machine code for `arch` ("sm_90a"). Thread-safe. Throws UserError with the linker's own words.
  virtual MachineCode link(std::string_view ptx, std::string_view arch) const = 0;
};

struct LinkerAnswer {
  Support support;
  const Linker* linker = nullptr;
  std::string path;
  std::string build = {};  // of the library: another one may assemble otherwise
};

// Loaded once per process and major version. A driver does not take machine code of a newer CUDA
// than its own, so it asks for at most its own major version.
const LinkerAnswer& linker(int newest_major);

// What kernels are told apart by.
Digest content_of(const codegen::GpuCode& code);

// The machine code of `ptx`, whose hash is `content`: linked once per process, and kept after the
// last kernel that was loaded from it is gone; not even once where `cache` has it. Throws what
// Linker::link throws.
std::shared_ptr<const MachineCode> link_once(const LinkerAnswer& answer, const Digest& content,
                                             std::string_view ptx, const std::string& arch,
                                             DiskCache* cache = nullptr);

}  // namespace tenon::device
