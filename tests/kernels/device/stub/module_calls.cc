// Modules, kernels and launches.
#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "tests/kernels/device/stub/exports.h"
#include "tests/kernels/device/stub/modules.h"
#include "tests/kernels/device/stub/tensor_maps.h"

using namespace tenon::stub;
using tenon::device::FunctionHandle;
using tenon::device::LaunchAttribute;
using tenon::device::LaunchConfig;
using tenon::device::ModuleHandle;
using tenon::device::StreamHandle;

namespace {

constexpr int kRegistersAttribute = 4, kLocalBytesAttribute = 3, kDynamicSharedAttribute = 8,
              kSharedShareAttribute = 9;

void write_log(const std::string& text, unsigned options, const int* keys, void** values) {
  constexpr int kErrorLog = 5, kErrorLogBytes = 6;
  char* log = nullptr;
  size_t size = 0;
  for (unsigned i = 0; i < options; ++i) {
    if (keys[i] == kErrorLog) log = static_cast<char*>(values[i]);
    if (keys[i] == kErrorLogBytes) size = reinterpret_cast<size_t>(values[i]);
  }
  if (log != nullptr && size > 0) log[text.copy(log, size - 1)] = 0;
}

Function* find_function(World& world, FunctionHandle handle, const char* function) {
  if (world.functions.has(handle)) return reinterpret_cast<Function*>(handle);
  world.report(fmt::format("{} of a kernel whose module was unloaded", function));
  return nullptr;
}

// Fills in what the attributes say of the launch's shape.
Result read_attributes(World& world, const LaunchConfig& config, LaunchShape& shape) {
  for (unsigned i = 0; i < config.attribute_count; ++i) {
    const LaunchAttribute& attribute = config.attributes[i];
    if (attribute.id == LaunchAttribute::kProgrammaticSerialization) {
      shape.pdl = attribute.value.allowed != 0;
      continue;
    }
    if (attribute.id != LaunchAttribute::kClusterDimension) {
      world.report(fmt::format("a launch with attribute {}, which nobody knows", attribute.id));
      return kInvalidValue;
    }
    shape.cluster = attribute.value.cluster.x;
    if (attribute.value.cluster.y == 1 && attribute.value.cluster.z == 1) continue;
    world.report("clusters with more than one dimension");
    return kInvalidValue;
  }
  return kSuccess;
}

Result launch(World& world, const char* name, const LaunchConfig& config, FunctionHandle handle,
              void** arguments) {
  Function* function = find_function(world, handle, name);
  Stream* stream = find_stream(world, config.stream, name);
  if (function == nullptr || stream == nullptr) return kInvalidHandle;
  if (config.grid_y != 1 || config.grid_z != 1 || config.block_y != 1 || config.block_z != 1) {
    world.report("a launch with more than one dimension: a task is one CTA in a row");
    return kInvalidValue;
  }
  LaunchShape shape{config.grid_x, config.block_x, config.shared_bytes};
  if (const Result result = read_attributes(world, config, shape)) return result;
  Work work;
  if (const Result result = prepare(world, *function, shape, arguments, work)) return result;
  return enqueue(world, *stream, std::move(work));
}

}  // namespace

TENON_STUB_EXPORT Result cuModuleLoadDataEx(ModuleHandle* module, const void* image,
                                            unsigned options, int* keys, void** values) {
  // Reading a program needs nothing of the world: the lock is for before and after.
  if (const Result result =
          call(__func__, kContext | kNoCapture, [](World&) { return kSuccess; })) {
    return result;
  }
  std::shared_ptr<const Program> program;
  try {
    program = program_of(static_cast<const char*>(image));
  } catch (const std::exception& error) {
    write_log(error.what(), options, keys, values);
    return kInvalidPtx;
  }
  const std::lock_guard lock(world().mutex);
  auto loaded = std::make_unique<Module>();
  loaded->device = current_device().number;
  loaded->threads = required_threads(static_cast<const char*>(image));
  loaded->descriptors = array_parameters(static_cast<const char*>(image));
  loaded->program = std::move(program);
  *module = reinterpret_cast<ModuleHandle>(world().modules.add(std::move(loaded)));
  return kSuccess;
}

TENON_STUB_EXPORT Result cuModuleUnload(ModuleHandle module) {
  return call(__func__, kContext | kNoCapture, [&](World& world) -> Result {
    const std::set<const void*> functions = world.functions.live();
    for (const void* handle : functions) {
      const auto* loaded = static_cast<const Function*>(handle)->module;
      if (loaded == reinterpret_cast<const Module*>(module)) world.functions.remove(handle);
    }
    return world.modules.remove(module) ? kSuccess : kInvalidHandle;
  });
}

TENON_STUB_EXPORT Result cuModuleGetFunction(FunctionHandle* handle, ModuleHandle module,
                                             const char* name) {
  return call(__func__, kContext, [&](World& world) -> Result {
    if (!world.modules.has(module)) return kInvalidHandle;
    const auto& loaded = *reinterpret_cast<const Module*>(module);
    if (loaded.program->kernel.name != name) return kNotFound;
    auto function = std::make_unique<Function>();
    function->module = &loaded;
    function->program = loaded.program;
    *handle = reinterpret_cast<FunctionHandle>(world.functions.add(std::move(function)));
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuFuncSetAttribute(FunctionHandle handle, int attribute, int value) {
  const char* const name = __func__;
  return call(name, kContext, [&](World& world) -> Result {
    Function* function = find_function(world, handle, name);
    if (function == nullptr) return kInvalidHandle;
    if (attribute == kSharedShareAttribute) return value <= 100 ? kSuccess : kInvalidValue;
    if (attribute != kDynamicSharedAttribute || value < 0 ||
        value > current_device().description.shared_bytes) {
      return kInvalidValue;
    }
    function->dynamic_shared_bytes = static_cast<size_t>(value);
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuFuncGetAttribute(int* value, int attribute, FunctionHandle handle) {
  const char* const name = __func__;
  return call(name, kContext, [&](World& world) -> Result {
    Function* function = find_function(world, handle, name);
    if (function == nullptr) return kInvalidHandle;
    if (attribute != kRegistersAttribute && attribute != kLocalBytesAttribute) return kInvalidValue;
    *value = attribute == kRegistersAttribute ? 32 : 0;
    return kSuccess;
  });
}

TENON_STUB_EXPORT Result cuLaunchKernel(FunctionHandle handle, unsigned grid_x, unsigned grid_y,
                                        unsigned grid_z, unsigned block_x, unsigned block_y,
                                        unsigned block_z, unsigned shared_bytes,
                                        StreamHandle stream, void** arguments, void**) {
  const char* const name = __func__;
  const LaunchConfig config{grid_x,  grid_y,       grid_z, block_x, block_y,
                            block_z, shared_bytes, stream, nullptr, 0};
  return call(name, kContext, [&](World& world) -> Result {
    return launch(world, name, config, handle, arguments);
  });
}

TENON_STUB_EXPORT Result cuLaunchKernelEx(const LaunchConfig* config, FunctionHandle handle,
                                          void** arguments, void**) {
  const char* const name = __func__;
  return call(name, kContext, [&](World& world) -> Result {
    return launch(world, name, *config, handle, arguments);
  });
}
