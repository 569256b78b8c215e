// A real ONNX Runtime with the plugin registered: sessions on Tenon's device, and what it claimed.
#pragma once

#include <onnxruntime_cxx_api.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "onnx_model.h"

namespace tenon::testing {

inline constexpr const char* kTenon = "TenonExecutionProvider";

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true, kSanitizer = true;
#elif defined(__SANITIZE_THREAD__)
inline constexpr bool kAddressSanitizer = false, kSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false, kSanitizer = false;
#endif

// The runtime at $TENON_TEST_ONNXRUNTIME, opened by name: nothing is linked against it. No driver
// is looked for unless $TENON_DRIVER_LIBRARY names one: a machine's GPUs change nothing here.
const OrtApiBase& api_base();
bool runtime_at_least(int minor);  // 27: 1.27

// Absolute path of the plugin under test, from $TENON_LIBRARY_PATH.
const std::string& plugin_path();

// The process's environment with the plugin registered; released after the last test.
Ort::Env& env();
std::vector<Ort::ConstEpDevice> tenon_devices(const Ort::Env& env);
// The CPU's device for -1; GPUs are counted from 0.
Ort::ConstEpDevice tenon_device(const Ort::Env& env, int gpu);
// What the environment's logger received since the last call.
std::vector<std::string> take_log();

using Options = std::map<std::string, std::string>;

struct Settings {
  bool cpu_fallback = true;  // false: the session fails when Tenon leaves a node out
  int threads = 2;
  OrtLoggingLevel log_level = ORT_LOGGING_LEVEL_ERROR;
  int gpu = -1;                // which one of Tenon's; -1: the CPU
  std::vector<int> more = {};  // given to the session behind it, as tools do
  OrtCustomOpDomain* custom_ops = nullptr;
  bool inline_ahead = true;  // false: functions are inlined and compiled round by round
  std::vector<std::pair<std::string, std::string>> entries = {};  // of the session's configuration
};

class Session {
 public:
  explicit Session(const std::string& model, const Options& options = {},
                   const Settings& settings = {});

  // Outputs in the model's order. Thread-safe, as the runtime's Run is.
  std::vector<Tensor> run(const std::map<std::string, Tensor>& inputs) const;

  // Names of the nodes in each of Tenon's partitions; main graph only.
  std::vector<std::vector<std::string>> partitions() const;
  size_t claimed_nodes() const;

  std::vector<Type> output_types() const;
  Ort::Session& runtime_session() const { return session_; }

 private:
  mutable Ort::Session session_{nullptr};
  std::vector<std::string> output_names_;
};

// The message of the error that `action` ends in; fails the test when it ends well.
std::string error_of(const std::function<void()>& action);

// A fresh folder that is removed with its content.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path(const std::string& name = "") const;

 private:
  std::string folder_;
};

std::string read_file(const std::string& path);

}  // namespace tenon::testing
