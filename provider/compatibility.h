// What a context model was compiled for, as one line in its metadata: whoever ships models asks
// with it, before anything is opened, whether a machine can run one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/target.h"

namespace tenon::provider {

struct ContextOrigin {
  std::string version;                // of Tenon
  std::vector<std::string> targets;   // "sm_90a", "x86_64"
  std::vector<std::string> features;  // of the CPU, where it is one of them
  std::string machine_code;           // of its kernels: "12 of 14"; empty on a CPU
  bool weights_outside = false;       // they are in the model's files of external data
  std::string cudnn = {};             // version that it was compiled with, where it calls cuDNN

  std::string text() const;
};

// Of a target's name.
bool is_gpu(std::string_view target);

// Throws UserError for what is none, also for a line of another form than this version's.
ContextOrigin parse_context_origin(std::string_view text);

// A device that may run the context.
struct OfferedDevice {
  std::string target;                 // as in ContextOrigin
  std::vector<std::string> features;  // of a CPU
  bool is_gpu = false;
  std::string no_cudnn = {};  // why contexts that call cuDNN do not open there; empty: they do
};
OfferedDevice offered(const codegen::HostTarget& host);

struct Compatibility {
  enum class Kind { kNot, kCompiledAgain, kAsStored } kind = Kind::kNot;  // worse first
  std::string reason;                                                     // empty as stored
};

// The best that one of the devices makes of it.
Compatibility compatibility(const ContextOrigin& origin, std::span<const OfferedDevice> devices);

}  // namespace tenon::provider
