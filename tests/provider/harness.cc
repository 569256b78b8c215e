#include "harness.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>

namespace tenon::testing {
namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) {
    std::fprintf(stderr, "%s is not set: run this program through ctest\n", name);
    std::exit(2);
  }
  return value;
}

int runtime_minor() { return std::atoi(api_base().GetVersionString() + 2); }

struct Log {
  std::mutex mutex;
  std::vector<std::string> lines;
};

Log& log() {
  static Log* const instance = new Log;
  return *instance;
}

void ORT_API_CALL record(void*, OrtLoggingLevel, const char*, const char*, const char*,
                         const char* message) {
  const std::lock_guard lock(log().mutex);
  log().lines.emplace_back(message);
}

std::optional<Ort::Env>& holder() {
  static std::optional<Ort::Env> env;
  return env;
}

// The environment must go before the libraries' static destructors run.
class ReleaseEnvironment : public ::testing::Environment {
 public:
  void TearDown() override { holder().reset(); }
};
const auto* const release_environment = ::testing::AddGlobalTestEnvironment(new ReleaseEnvironment);

Ort::Value to_value(const Tensor& tensor) {
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  // The runtime does not write to inputs; its API has no const variant.
  return Ort::Value::CreateTensor(memory, const_cast<char*>(tensor.bytes.data()),
                                  tensor.bytes.size(), tensor.dims.data(), tensor.dims.size(),
                                  tensor.type);
}

Tensor to_tensor(const Ort::Value& value) {
  const auto info = value.GetTensorTypeAndShapeInfo();
  const char* data = static_cast<const char*>(value.GetTensorRawData());
  return {info.GetElementType(), info.GetShape(), {data, value.GetTensorSizeInBytes()}};
}

}  // namespace

const OrtApiBase& api_base() {
  static const OrtApiBase* const base = [] {
    setenv("TENON_DRIVER_LIBRARY", "no driver", 0);
    void* library = dlopen(variable("TENON_TEST_ONNXRUNTIME"), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::exit(2);
    }
    using GetApiBase = const OrtApiBase* (*)();
    const auto get = reinterpret_cast<GetApiBase>(dlsym(library, "OrtGetApiBase"));
    const int minor = std::atoi(get()->GetVersionString() + 2);
    Ort::InitApi(get()->GetApi(static_cast<uint32_t>(std::min(minor, ORT_API_VERSION))));
    return get();
  }();
  return *base;
}

bool runtime_at_least(int minor) { return runtime_minor() >= minor; }

const std::string& plugin_path() {
  static const std::string path = std::filesystem::absolute(variable("TENON_LIBRARY_PATH"));
  return path;
}

Ort::Env& env() {
  if (!holder()) {
    api_base();
    holder().emplace(ORT_LOGGING_LEVEL_WARNING, "tenon-tests", record, nullptr);
    holder()->RegisterExecutionProviderLibrary(kTenon, plugin_path());
  }
  return *holder();
}

std::vector<Ort::ConstEpDevice> tenon_devices(const Ort::Env& env) {
  std::vector<Ort::ConstEpDevice> devices = env.GetEpDevices();
  std::erase_if(devices, [](const auto& device) { return device.EpName() != std::string(kTenon); });
  return devices;
}

Ort::ConstEpDevice tenon_device(const Ort::Env& env, int gpu) {
  const OrtHardwareDeviceType type =
      gpu < 0 ? OrtHardwareDeviceType_CPU : OrtHardwareDeviceType_GPU;
  std::vector<Ort::ConstEpDevice> devices = tenon_devices(env);
  std::erase_if(devices, [&](const auto& device) { return device.Device().Type() != type; });
  return devices.at(static_cast<size_t>(std::max(gpu, 0)));
}

std::vector<std::string> take_log() {
  const std::lock_guard lock(log().mutex);
  return std::exchange(log().lines, {});
}

Session::Session(const std::string& model, const Options& options, const Settings& settings) {
  Ort::Env& environment = env();
  Ort::SessionOptions session_options;
  session_options.SetIntraOpNumThreads(settings.threads);
  session_options.SetLogSeverityLevel(settings.log_level);
  session_options.AddConfigEntry("session.record_ep_graph_assignment_info", "1");
  if (!settings.cpu_fallback) {
    session_options.AddConfigEntry("session.disable_cpu_ep_fallback", "1");
  }
  if (!settings.inline_ahead) {
    session_options.AddConfigEntry("session.disable_aot_function_inlining", "1");
  }
  for (const auto& [key, value] : settings.entries) {
    session_options.AddConfigEntry(key.c_str(), value.c_str());
  }
  std::vector<Ort::ConstEpDevice> devices = {tenon_device(environment, settings.gpu)};
  for (const int gpu : settings.more) devices.push_back(tenon_device(environment, gpu));
  if (settings.custom_ops != nullptr) session_options.Add(settings.custom_ops);
  session_options.AppendExecutionProvider_V2(environment, devices,
                                             {options.begin(), options.end()});
  session_ = Ort::Session(environment, model.data(), model.size(), session_options);
  output_names_ = session_.GetOutputNames();
}

std::vector<Tensor> Session::run(const std::map<std::string, Tensor>& inputs) const {
  std::vector<const char*> input_names, output_names;
  std::vector<Ort::Value> values;
  for (const auto& [name, tensor] : inputs) {
    input_names.push_back(name.c_str());
    values.push_back(to_value(tensor));
  }
  for (const std::string& name : output_names_) output_names.push_back(name.c_str());
  const std::vector<Ort::Value> results =
      session_.Run(Ort::RunOptions{}, input_names.data(), values.data(), values.size(),
                   output_names.data(), output_names.size());
  std::vector<Tensor> tensors;
  for (const Ort::Value& result : results) tensors.push_back(to_tensor(result));
  return tensors;
}

std::vector<std::vector<std::string>> Session::partitions() const {
  std::vector<std::vector<std::string>> partitions;
  for (const auto& subgraph : session_.GetEpGraphAssignmentInfo()) {
    if (subgraph.GetEpName() != kTenon) continue;
    auto& names = partitions.emplace_back();
    for (const auto& node : subgraph.GetNodes()) names.push_back(node.GetName());
  }
  return partitions;
}

size_t Session::claimed_nodes() const {
  size_t count = 0;
  for (const auto& partition : partitions()) count += partition.size();
  return count;
}

std::vector<Type> Session::output_types() const {
  std::vector<Type> types;
  for (size_t i = 0; i < output_names_.size(); ++i) {
    types.push_back(session_.GetOutputTypeInfo(i).GetTensorTypeAndShapeInfo().GetElementType());
  }
  return types;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    EXPECT_STRNE(error.what(), "");
    return error.what();
  }
  ADD_FAILURE() << "an error was expected";
  return "";
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = std::filesystem::temp_directory_path() / "tenon-test-XXXXXX";
  folder_ = mkdtemp(pattern.data());
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string TemporaryFolder::path(const std::string& name) const {
  return name.empty() ? folder_ : folder_ + "/" + name;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

}  // namespace tenon::testing
