// Loading and unloading the plugin, what it offers, and the runtime's version.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "harness.h"

namespace tenon::testing {
namespace {

using ::testing::HasSubstr;

bool is_mapped(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path) != std::string::npos) return true;
  }
  return false;
}

size_t thread_count() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Threads:")) return std::stoul(line.substr(8));
  }
  return 0;
}

TEST(Registration, OffersOneCpuDevice) {
  const auto devices = tenon_devices(env());
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices[0].Device().Type(), OrtHardwareDeviceType_CPU);
  EXPECT_STREQ(devices[0].EpVendor(), "Tenon");
}

TEST(Registration, DeviceMetadataNamesTargetVersionAndLibrary) {
  const auto metadata = tenon_devices(env()).at(0).EpMetadata().GetKeyValuePairs();
  EXPECT_EQ(metadata.at("tenon_target"), "cpu");
  EXPECT_FALSE(metadata.at("version").empty());
  if (metadata.contains("library_path")) {
    EXPECT_EQ(metadata.at("library_path"), plugin_path());
  }
}

TEST(Registration, RegistersAndUnregistersFiftyTimes) {
  const size_t before = tenon_devices(env()).size();
  size_t threads = 0;
  for (int i = 0; i < 50; ++i) {
    env().RegisterExecutionProviderLibrary("again", plugin_path());
    ASSERT_EQ(tenon_devices(env()).size(), before + 1) << "round " << i;
    env().UnregisterExecutionProviderLibrary("again");
    ASSERT_EQ(tenon_devices(env()).size(), before) << "round " << i;
    if (i == 0) threads = thread_count();
  }
  EXPECT_EQ(thread_count(), threads);
}

TEST(Registration, SameNameTwiceIsRefusedAndHarmless) {
  const std::string message =
      error_of([] { env().RegisterExecutionProviderLibrary(kTenon, plugin_path()); });
  EXPECT_THAT(message, HasSubstr("already registered"));
  EXPECT_EQ(tenon_devices(env()).size(), 1U);
}

TEST(Registration, ExportsTheEntryPointsAndNothingOfItsInside) {
  void* library = dlopen(plugin_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  EXPECT_NE(dlsym(library, "CreateEpFactories"), nullptr);
  EXPECT_NE(dlsym(library, "ReleaseEpFactory"), nullptr);
  EXPECT_NE(dlsym(library, "TenonFitCosts"), nullptr);
  EXPECT_EQ(dlsym(library, "GetProvider"), nullptr);  // would be taken for an old bridge library
  dlclose(library);
}

using CreateFactories = OrtStatus* (*)(const char*, const OrtApiBase*, const OrtLogger*,
                                       OrtEpFactory**, size_t, size_t*);

const OrtApi* ORT_API_CALL real_api(uint32_t version) noexcept {
  return api_base().GetApi(version);
}
const OrtApi* ORT_API_CALL only_the_first_api(uint32_t version) noexcept {
  return version == 1 ? api_base().GetApi(1) : nullptr;
}

// What CreateEpFactories says to a runtime that calls itself `version`.
template <const char* kVersion>
std::string refusal(const OrtApi*(ORT_API_CALL* get_api)(uint32_t) noexcept) {
  api_base();
  const OrtApiBase stub{get_api, +[]() noexcept { return kVersion; }};
  void* library = dlopen(plugin_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto create = reinterpret_cast<CreateFactories>(dlsym(library, "CreateEpFactories"));
  OrtEpFactory* factory = nullptr;
  size_t count = 99;
  const Ort::Status status(create("stub", &stub, nullptr, &factory, 1, &count));
  EXPECT_EQ(count, 0U);
  EXPECT_EQ(factory, nullptr);
  const std::string message = status.IsOK() ? "" : status.GetErrorMessage();
  dlclose(library);
  return message;
}

constexpr char kOldMinor[] = "1.23.0", kOldPatch[] = "1.24.3", kOldMajor[] = "0.99.0",
               kGarbage[] = "from source", kNew[] = "1.31.1";

TEST(RuntimeVersion, BelowTheFloorIsRefusedWithBothVersionsAndAdvice) {
  for (const std::string& message : {refusal<kOldMinor>(real_api), refusal<kOldPatch>(real_api)}) {
    EXPECT_THAT(message, HasSubstr("needs ONNX Runtime 1.24.4 or newer"));
    EXPECT_THAT(message, HasSubstr("upgrade"));
  }
  EXPECT_THAT(refusal<kOldMinor>(real_api), HasSubstr("1.23.0"));
}

TEST(RuntimeVersion, UnreadableVersionsAreRefused) {
  EXPECT_THAT(refusal<kGarbage>(real_api), HasSubstr("from source"));
  EXPECT_THAT(refusal<kOldMajor>(real_api), HasSubstr("0.99.0"));
}

TEST(RuntimeVersion, ARuntimeWithoutTheApiThatItClaimsIsRefused) {
  EXPECT_THAT(refusal<kNew>(only_the_first_api), HasSubstr("1.31.1"));
}

// In a process of its own, where nobody else holds the library.
[[noreturn]] void unregister_and_exit() {
  api_base();
  {
    Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "unmap");
    environment.RegisterExecutionProviderLibrary("unmap", plugin_path());
    if (!is_mapped(plugin_path())) std::exit(1);
    environment.UnregisterExecutionProviderLibrary("unmap");
  }
  std::exit(is_mapped(plugin_path()) ? 2 : 0);
}

TEST(RegistrationDeathTest, UnregisteringUnmapsTheLibrary) {
  if (!runtime_at_least(27)) GTEST_SKIP() << "1.24 opens a plugin twice and closes it once";
  if (kSanitizer) GTEST_SKIP() << "sanitizer builds keep the library mapped";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(unregister_and_exit(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tenon::testing
