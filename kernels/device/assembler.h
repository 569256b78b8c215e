// PTX to machine code in this process, by the vendor's libraries that are installed
// (vendor_library.h says where they are looked for). Needs no GPU. Read assemble() first.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
  std::string remarks;  // of the assembler
};

class Assembler {
 public:
  virtual ~Assembler() = default;
  // Machine code for `arch` ("sm_90a"). Thread-safe. Throws UserError with the library's own words.
  virtual MachineCode assemble(std::string_view ptx, std::string_view arch) const = 0;
};

struct AssemblerAnswer {
  Support support;
  const Assembler* assembler = nullptr;
  std::string path = {};
  std::string build = {};  // of the library: another one may assemble otherwise
};

// Each loaded once per process and major version. A driver does not take machine code of a newer
// CUDA than its own, so it asks for at most its own major version.
//
// nvJitLink compiles a unit that others might call: it does not deal registers anew (setmaxnreg),
// and where a division is a call it runs asynchronous products one after the other, and says so.
// NVRTC compiles whole programs, but of CUDA C++ (ptx_in_cuda.h).
const AssemblerAnswer& nvjitlink(int newest_major);
const AssemblerAnswer& nvrtc(int newest_major);

// What a library says of a program: `size_of(program, &size)` bytes, a closing zero among them.
template <typename Program, typename Size, typename Text>
std::string words_of(Program program, const Size& size_of, const Text& text_of) {
  size_t size = 0;
  if (size_of(program, &size) != 0 || size == 0) return {};
  std::string text(size, '\0');
  if (text_of(program, text.data()) != 0) return {};
  if (const size_t end = text.find('\0'); end != text.npos) text.resize(end);
  return text;
}

// How both are loaded: the library's names, newest first, and what `load(newest_major)` answered
// the first time.
std::vector<std::string> names_of_majors(std::string_view library, int newest_major);
const AssemblerAnswer& loaded_once(AssemblerAnswer (*load)(int), int newest_major);

// What nvJitLink alone would make slow.
bool deals_registers(std::string_view ptx);
bool runs_products_in_turn(const MachineCode& code);

// What kernels are told apart by.
Digest content_of(const codegen::GpuCode& code);

// The machine code of `ptx`, whose hash is `content`: assembled once per process, and kept after
// the last kernel that was loaded from it is gone; not even once where `cache` has it. Throws what
// Assembler::assemble throws.
std::shared_ptr<const MachineCode> assemble_once(const AssemblerAnswer& answer,
                                                 const Digest& content, std::string_view ptx,
                                                 const std::string& arch,
                                                 DiskCache* cache = nullptr);

struct Assembled {
  std::shared_ptr<const MachineCode> code;  // null: the driver assembles it, one at a time
  std::string why;                          // where it is null
};

// By nvJitLink, the quickest, where that is as fast code as there is, else by NVRTC. `content`:
// content_of(code).
Assembled assemble(const codegen::GpuCode& code, const Digest& content, const std::string& arch,
                   int newest_major, DiskCache* cache);
// The same with other assemblers, for tests.
Assembled assemble(const codegen::GpuCode& code, const Digest& content, const std::string& arch,
                   const AssemblerAnswer& units, const AssemblerAnswer& whole_programs,
                   DiskCache* cache);

}  // namespace tenon::device
