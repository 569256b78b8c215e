// What both examples begin with: a runtime opened by name, the plugin registered with it.
#pragma once

#include <dlfcn.h>
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

// By name, since the runtime's symbols carry its version: a program linked against one release
// would not start with another.
inline void open_runtime(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto get_base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
  if (get_base == nullptr) throw std::runtime_error(std::string(path) + " is no ONNX Runtime");
  const int minor = std::atoi(get_base()->GetVersionString() + 2);  // "1.31.1"
  Ort::InitApi(get_base()->GetApi(static_cast<uint32_t>(std::min(minor, ORT_API_VERSION))));
}

inline bool is_gpu(const Ort::ConstEpDevice& device) {
  return device.Device().Type() == OrtHardwareDeviceType_GPU;
}

// Tenon's best device: a GPU where there is one.
inline Ort::ConstEpDevice register_tenon(Ort::Env& env, const char* plugin) {
  // Absolute: the runtime resolves a relative path against its own folder.
  env.RegisterExecutionProviderLibrary("tenon", std::filesystem::absolute(plugin));
  std::vector<Ort::ConstEpDevice> devices = env.GetEpDevices();
  std::erase_if(devices, [](const auto& device) {
    return std::string(device.EpName()) != "TenonExecutionProvider";
  });
  std::stable_partition(devices.begin(), devices.end(), is_gpu);
  return devices.at(0);
}
