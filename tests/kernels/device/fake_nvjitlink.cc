// An nvJitLink that makes "machine code" of any PTX: four bytes that loaders look for, and the
// text.
#include <cstdint>
#include <cstring>
#include <string>

#define TENON_VISIBLE extern "C" __attribute__((visibility("default")))

namespace {
struct Link {
  std::string code;
};
}  // namespace

TENON_VISIBLE int nvJitLinkCreate(Link** link, uint32_t, const char**) {
  *link = new Link;
  return 0;
}
TENON_VISIBLE int nvJitLinkDestroy(Link** link) {
  delete *link;
  return 0;
}
TENON_VISIBLE int nvJitLinkAddData(Link* link, int, const void* data, size_t size, const char*) {
  link->code = "\177ELF" + std::string(static_cast<const char*>(data), size);
  return 0;
}
TENON_VISIBLE int nvJitLinkComplete(Link*) { return 0; }
TENON_VISIBLE int nvJitLinkGetLinkedCubinSize(Link* link, size_t* size) {
  *size = link->code.size();
  return 0;
}
TENON_VISIBLE int nvJitLinkGetLinkedCubin(Link* link, void* code) {
  std::memcpy(code, link->code.data(), link->code.size());
  return 0;
}
TENON_VISIBLE int nvJitLinkGetErrorLogSize(Link*, size_t* size) { return *size = 0, 0; }
TENON_VISIBLE int nvJitLinkGetErrorLog(Link*, char*) { return 0; }
TENON_VISIBLE int nvJitLinkGetInfoLogSize(Link*, size_t* size) { return *size = 0, 0; }
TENON_VISIBLE int nvJitLinkGetInfoLog(Link*, char*) { return 0; }
