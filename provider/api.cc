#include "provider/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"

namespace tenon::provider {
namespace {

struct Release {
  int minor = 0;
  int patch = 0;
};

// "1.31.1" and "1.31.1-rc2" alike; anything else is 0.0.
Release parse_release(std::string_view text) {
  Release release;
  if (!text.starts_with("1.")) return release;
  const char* end = text.data() + text.size();
  auto [next, error] = std::from_chars(text.data() + 2, end, release.minor);
  if (error == std::errc{} && next != end && *next == '.') {
    std::from_chars(next + 1, end, release.patch);
  }
  return release;
}

Runtime& mutable_runtime() {
  static Runtime* const instance = new Runtime;
  return *instance;
}

}  // namespace

const Runtime& runtime() { return mutable_runtime(); }

void negotiate(const OrtApiBase& base) {
  const char* release_text = base.GetVersionString();
  const Release found = parse_release(release_text);
  const Release floor = parse_release(TENON_MIN_ONNXRUNTIME_VERSION);
  if (found.minor < floor.minor || (found.minor == floor.minor && found.patch < floor.patch)) {
    throw UserError(
        fmt::format("Tenon needs ONNX Runtime {} or newer, this process has {}: upgrade the "
                    "onnxruntime package",
                    TENON_MIN_ONNXRUNTIME_VERSION, release_text));
  }
  const auto version = std::min<uint32_t>(ORT_API_VERSION, static_cast<uint32_t>(found.minor));
  const OrtApi* api = base.GetApi(version);
  if (api == nullptr) {
    throw UserError(fmt::format("ONNX Runtime {} does not serve its own API version {}",
                                release_text, version));
  }
  mutable_runtime() = {api, api->GetEpApi(), version, release_text};
}

void throw_status(OrtStatus* status) {
  std::string message = runtime().api->GetErrorMessage(status);
  runtime().api->ReleaseStatus(status);
  throw UserError(message);
}

}  // namespace tenon::provider
