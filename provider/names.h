#pragma once

namespace tenon::provider {

inline constexpr const char* kProviderName = "TenonExecutionProvider";
inline constexpr const char* kVendor = "Tenon";
// Options arrive in the session configuration as this + key (the runtime lower-cases the name).
inline constexpr const char* kOptionPrefix = "ep.tenonexecutionprovider.";

// A device's metadata, newer than the headers: contexts may leave external data where it is.
inline constexpr const char* kWeightlessSupport = "weightless_support";  // since 1.29
inline constexpr const char* kWeightlessOfExternalData = "external_only";

}  // namespace tenon::provider
