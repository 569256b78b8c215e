#pragma once

namespace tenon::provider {

inline constexpr const char* kProviderName = "TenonExecutionProvider";
inline constexpr const char* kVendor = "Tenon";
// Options arrive in the session configuration as this + key (the runtime lower-cases the name).
inline constexpr const char* kOptionPrefix = "ep.tenonexecutionprovider.";

}  // namespace tenon::provider
