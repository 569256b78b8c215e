#include "tests/kernels/device/stub/control.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/kernels/device/stub/exports.h"
#include "tests/kernels/device/stub/world.h"

using namespace tenon::stub;

namespace {

// Takes a function out of the library's own symbol table by changing the first letter of its name.
void drop(const std::string& function) {
  Dl_info library{}, symbol{};
  if (dladdr(reinterpret_cast<const void*>(&tenon_stub_reset), &library) == 0) return;
  void* handle = dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  void* address = handle == nullptr ? nullptr : dlsym(handle, function.c_str());
  if (address == nullptr || dladdr(address, &symbol) == 0 || symbol.dli_sname != function) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(symbol.dli_sname) / page * page;
  if (mprotect(reinterpret_cast<void*>(begin), page, PROT_READ | PROT_WRITE) == 0) {
    *const_cast<char*>(symbol.dli_sname) = '-';
  }
}

void apply(World& world, std::string_view commands) {
  Script script = world.script;
  script.dropped.clear();
  script.add(commands);
  world.script = script;
  world.calls_since_script.clear();
  world.streams_since_script = 0;
  for (const std::string& function : script.dropped) drop(function);
  for (const auto& device : world.devices) {
    if (script.free_memory >= 0) {
      device->limit = device->used + static_cast<size_t>(script.free_memory);
    }
  }
  world.script.free_memory = -1;
}

__attribute__((constructor)) void read_environment() {
  const char* script = std::getenv("TENON_STUB_SCRIPT");
  if (script == nullptr) return;
  if (const char* problem = tenon_stub_script(script)) std::fprintf(stderr, "%s\n", problem);
}

const char* kept(std::string text) {
  static thread_local std::string last;
  last = std::move(text);
  return last.c_str();
}

}  // namespace

TENON_STUB_EXPORT const char* tenon_stub_script(const char* commands) {
  World& everything = world();
  const std::lock_guard lock(everything.mutex);
  try {
    apply(everything, commands);
    return nullptr;
  } catch (const std::exception& error) {
    return kept(error.what());
  }
}

TENON_STUB_EXPORT const char* tenon_stub_reports() {
  World& everything = world();
  const std::lock_guard lock(everything.mutex);
  return kept(fmt::format("{}", fmt::join(everything.findings, "\n")));
}

TENON_STUB_EXPORT const char* tenon_stub_leaks() {
  World& everything = world();
  const std::lock_guard lock(everything.mutex);
  return kept(everything.alive(-1));
}

TENON_STUB_EXPORT long tenon_stub_calls(const char* function) {
  World& everything = world();
  const std::lock_guard lock(everything.mutex);
  if (*function != 0) return everything.calls[function];
  long all = 0;
  for (const auto& [name, count] : everything.calls) all += count;
  return all;
}

TENON_STUB_EXPORT void tenon_stub_reset() {
  World& everything = world();
  const std::lock_guard lock(everything.mutex);
  everything.script.faults.clear();
  everything.script.hung_streams.clear();
  everything.script.lazy = false;
  everything.script.order.reset();
  finish_everything(everything);
  everything.calls.clear();
  everything.calls_since_script.clear();
  everything.streams_since_script = 0;
  everything.findings.clear();
  for (const auto& device : everything.devices) {
    device->lost = kSuccess;
    device->limit = static_cast<size_t>(device->description.memory_bytes);
  }
  for (const void* handle : everything.streams.live()) {
    const_cast<Stream*>(static_cast<const Stream*>(handle))->hung = false;
  }
  for (const void* handle : everything.events.live()) {
    const_cast<Event*>(static_cast<const Event*>(handle))->hung = false;
  }
}
