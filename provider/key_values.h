// The runtime's string maps, owned.
#pragma once

#include <onnxruntime_c_api.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "provider/api.h"

namespace tenon::provider {

using KeyValues = std::unique_ptr<OrtKeyValuePairs, void (*)(OrtKeyValuePairs*)>;

inline KeyValues own(OrtKeyValuePairs* pairs) {
  return {pairs, [](OrtKeyValuePairs* p) { runtime().api->ReleaseKeyValuePairs(p); }};
}

inline KeyValues key_values(std::initializer_list<std::pair<const char*, std::string>> entries) {
  OrtKeyValuePairs* pairs = nullptr;
  runtime().api->CreateKeyValuePairs(&pairs);
  for (const auto& [key, value] : entries) {
    runtime().api->AddKeyValuePair(pairs, key, value.c_str());
  }
  return own(pairs);
}

}  // namespace tenon::provider
