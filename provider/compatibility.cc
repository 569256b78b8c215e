#include "provider/compatibility.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace tenon::provider {
namespace {

constexpr std::string_view kForm = "tenon-context-2";
constexpr size_t kLongest = 16384;

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

Compatibility on_gpu(const ContextOrigin& origin, const OfferedDevice& device) {
  const bool is_for_gpus = std::ranges::any_of(origin.targets, is_gpu);
  if (is_for_gpus && !origin.cudnn.empty() && !device.no_cudnn.empty()) {
    return {Compatibility::Kind::kNot, device.no_cudnn};
  }
  if (std::ranges::find(origin.targets, device.target) != origin.targets.end()) {
    return {Compatibility::Kind::kAsStored, ""};
  }
  if (is_for_gpus) {
    return {Compatibility::Kind::kCompiledAgain,
            fmt::format("it was compiled for {}, this GPU is {}", fmt::join(origin.targets, ", "),
                        device.target)};
  }
  return {Compatibility::Kind::kNot,
          fmt::format("it was compiled for the CPU ({}), not for a GPU: compile it with "
                      "target_arch={}",
                      fmt::join(origin.targets, ", "), device.target)};
}

Compatibility on_cpu(const ContextOrigin& origin, const OfferedDevice& device) {
  if (std::ranges::find(origin.targets, device.target) == origin.targets.end()) {
    return {Compatibility::Kind::kNot,
            fmt::format("it was compiled for {}, {}", fmt::join(origin.targets, ", "),
                        std::ranges::any_of(origin.targets, is_gpu)
                            ? "a GPU that is not in this machine"
                            : fmt::format("and this CPU is {}", device.target))};
  }
  std::vector<std::string> missing;
  std::ranges::copy_if(origin.features, std::back_inserter(missing), [&](const auto& feature) {
    return std::ranges::find(device.features, feature) == device.features.end();
  });
  if (missing.empty()) return {Compatibility::Kind::kAsStored, ""};
  // Whether a kernel needs them, only its text tells.
  return {Compatibility::Kind::kCompiledAgain,
          fmt::format("it was compiled on a CPU with {}, which this one has not",
                      fmt::join(missing, ", "))};
}

}  // namespace

bool is_gpu(std::string_view target) { return target.starts_with("sm_"); }

std::string ContextOrigin::text() const {
  return fmt::format("{};version={};targets={};features={};machine_code={};weights={};cudnn={}",
                     kForm, version, fmt::join(targets, ","), fmt::join(features, ","),
                     machine_code, weights_outside ? "outside" : "inside", cudnn);
}

OfferedDevice offered(const codegen::HostTarget& host) {
  return {host.arch == codegen::HostArch::kX86_64 ? "x86_64" : "aarch64", host.features, false};
}

ContextOrigin parse_context_origin(std::string_view text) {
  if (text.size() > kLongest) throw UserError("the line is longer than any that Tenon writes");
  const std::vector<std::string> parts = split(text, ';');
  if (parts.empty() || parts.front() != kForm) {
    throw UserError(fmt::format(
        "it does not begin with {}: another version of Tenon wrote it, or none; compile the model "
        "again",
        kForm));
  }
  ContextOrigin origin;
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    if (equals == std::string::npos) {
      throw UserError(fmt::format("'{}' is not key=value", parts[i].substr(0, 80)));
    }
    const std::string_view key = std::string_view(parts[i]).substr(0, equals);
    const std::string value = parts[i].substr(equals + 1);
    if (key == "version") origin.version = value;
    if (key == "targets") origin.targets = split(value, ',');
    if (key == "features") origin.features = split(value, ',');
    if (key == "machine_code") origin.machine_code = value;
    if (key == "cudnn") origin.cudnn = value;
    if (key == "weights") origin.weights_outside = value == "outside";
  }
  if (origin.targets.empty()) throw UserError("it names no target");
  return origin;
}

Compatibility compatibility(const ContextOrigin& origin, std::span<const OfferedDevice> devices) {
  Compatibility best{Compatibility::Kind::kNot, "no device was given"};
  for (size_t i = 0; i < devices.size(); ++i) {
    const Compatibility found =
        devices[i].is_gpu ? on_gpu(origin, devices[i]) : on_cpu(origin, devices[i]);
    if (i == 0 || found.kind > best.kind) best = found;
  }
  return best;
}

}  // namespace tenon::provider
