// The two symbols that ONNX Runtime asks for; fit_costs.cc has a third one. Everything else in the
// library is hidden.
#include <onnxruntime_c_api.h>

#include <atomic>
#include <exception>

#include "kernels/running/compiled_kernels.h"
#include "provider/api.h"
#include "provider/factory.h"
#include "provider/guard.h"

#define TENON_EXPORT extern "C" __attribute__((visibility("default")))

TENON_EXPORT OrtStatus* CreateEpFactories(const char* registered_name, const OrtApiBase* base,
                                          const OrtLogger* logger, OrtEpFactory** factories,
                                          size_t max_factories, size_t* factory_count);
TENON_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory);

namespace {
std::atomic<int> live_factories{0};  // one per name that the library is registered under
}  // namespace

OrtStatus* CreateEpFactories(const char* registered_name, const OrtApiBase* base,
                             const OrtLogger* logger, OrtEpFactory** factories,
                             size_t max_factories, size_t* factory_count) {
  using namespace tenon::provider;
  *factory_count = 0;
  // Too old a runtime has no table that we may use: its first API can still make a status.
  try {
    negotiate(*base);
  } catch (const std::exception& error) {
    return base->GetApi(1)->CreateStatus(ORT_FAIL, error.what());
  }
  return guarded([&] {
    if (max_factories < 1) throw tenon::UserError("ONNX Runtime offered no room for a factory");
    factories[0] = new Factory(registered_name, *logger);
    *factory_count = 1;
    ++live_factories;
  });
}

OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  delete static_cast<tenon::provider::Factory*>(factory);
  // The library goes with the last one.
  if (--live_factories == 0) tenon::kernels::forget_compiled_kernels();
  return nullptr;
}
