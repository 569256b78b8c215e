// The one place where exceptions end: nothing is thrown across the C boundary.
#pragma once

#include <onnxruntime_c_api.h>

#include <exception>
#include <new>

#include "base/error.h"
#include "provider/api.h"

namespace tenon::provider {

inline OrtStatus* make_status(OrtErrorCode code, const char* message) noexcept {
  return runtime().api->CreateStatus(code, message);
}

// Runs `body` and returns null, or the status that its exception becomes.
template <typename Body>
OrtStatus* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const UserError& error) {
    return make_status(ORT_INVALID_ARGUMENT, error.what());
  } catch (const std::bad_alloc&) {
    return make_status(ORT_FAIL, "[Tenon] out of host memory");
  } catch (const std::exception& error) {
    return make_status(ORT_EP_FAIL, error.what());
  } catch (...) {
    return make_status(ORT_EP_FAIL, "[Tenon] an unknown exception was thrown");
  }
}

}  // namespace tenon::provider
