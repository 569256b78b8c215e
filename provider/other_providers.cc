#include "provider/other_providers.h"

#include <link.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace tenon::provider {
namespace {

thread_local bool others_have_nodes = false;

// Providers that cast streams to a class of their own; they are loaded when a session names them.
constexpr std::string_view kStockGpuProviders[] = {
    "libonnxruntime_providers_cuda.so",
    "libonnxruntime_providers_tensorrt.so",
    "libonnxruntime_providers_nv_tensorrt_rtx.so",
};

bool stock_gpu_provider_is_loaded() noexcept {
  const auto is_one = [](dl_phdr_info* library, size_t, void*) noexcept {
    const std::string_view path = library->dlpi_name == nullptr ? "" : library->dlpi_name;
    const bool found = std::any_of(std::begin(kStockGpuProviders), std::end(kStockGpuProviders),
                                   [&](std::string_view name) { return path.ends_with(name); });
    return found ? 1 : 0;
  };
  return dl_iterate_phdr(is_one, nullptr) != 0;
}

}  // namespace

void begin_session() { others_have_nodes = false; }

void note_nodes_for_others() { others_have_nodes = true; }

bool shares_streams_with_stock_provider() noexcept {
  return others_have_nodes && stock_gpu_provider_is_loaded();
}

}  // namespace tenon::provider
