// The runtime's function tables, negotiated once in entry.cc.
#pragma once

#include <onnxruntime_c_api.h>

#include <string>

namespace tenon::provider {

struct Runtime {
  const OrtApi* api = nullptr;
  const OrtEpApi* ep = nullptr;
  uint32_t version = 0;  // API version in use: the smaller of the headers' and the runtime's
  std::string release;   // "1.31.1"
};

// Set before any other callback can run. Never destroyed: a late callback must still find it.
const Runtime& runtime();

// Asks for the newest API that both sides know; throws UserError below the version floor.
void negotiate(const OrtApiBase& base);

// Throws UserError with the runtime's own message, and releases the status.
[[noreturn]] void throw_status(OrtStatus* status);
inline void check(OrtStatus* status) {
  if (status != nullptr) throw_status(status);
}

}  // namespace tenon::provider
