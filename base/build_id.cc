#include "base/build_id.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tenon {
namespace {

struct Search {
  uintptr_t address = 0;
  std::string id;
};

constexpr size_t padded(size_t bytes) { return (bytes + 3) / 4 * 4; }

// The id among the notes of a segment; empty: there is none.
std::string id_in(const unsigned char* notes, size_t bytes) {
  while (bytes >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note{};
    std::memcpy(&note, notes, sizeof note);
    const size_t name = sizeof note, data = name + padded(note.n_namesz);
    const size_t end = data + padded(note.n_descsz);
    if (end > bytes) break;
    const std::string_view owner(reinterpret_cast<const char*>(notes + name), note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && owner == std::string_view("GNU\0", 4)) {
      return fmt::format("{:02x}", fmt::join(std::span(notes + data, note.n_descsz), ""));
    }
    notes += end;
    bytes -= end;
  }
  return {};
}

int look_into(dl_phdr_info* object, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  const std::span segments(object->dlpi_phdr, object->dlpi_phnum);
  bool holds = false;
  for (const ElfW(Phdr) & segment : segments) {
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    holds = holds || (segment.p_type == PT_LOAD && search.address >= begin &&
                      search.address - begin < segment.p_memsz);
  }
  if (!holds) return 0;
  for (const ElfW(Phdr) & segment : segments) {
    if (segment.p_type != PT_NOTE || !search.id.empty()) continue;
    search.id = id_in(reinterpret_cast<const unsigned char*>(object->dlpi_addr + segment.p_vaddr),
                      segment.p_memsz);
  }
  return 1;
}

}  // namespace

std::string build_id(const void* address) {
  Search search{reinterpret_cast<uintptr_t>(address), {}};
  dl_iterate_phdr(look_into, &search);
  if (!search.id.empty()) return search.id;
  Dl_info object{};
  struct stat known {};
  if (dladdr(address, &object) == 0 || object.dli_fname == nullptr) return "unknown";
  if (::stat(object.dli_fname, &known) != 0) return object.dli_fname;
  return fmt::format("{} {} {}.{:09}", object.dli_fname, known.st_size, known.st_mtim.tv_sec,
                     known.st_mtim.tv_nsec);
}

}  // namespace tenon
