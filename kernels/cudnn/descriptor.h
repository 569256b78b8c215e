// One descriptor of cuDNN's graph API. Every call that fails throws with cuDNN's own words.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cudnn/library.h"
#include "kernels/cudnn/names.h"

namespace tenon::cudnn {

// cuDNN refused a call: a reason to whoever asks for a plan, an error in a Run.
class CallFailed : public UserError {
 public:
  using UserError::UserError;
};

void check(const Functions& functions, Status status, std::string_view what);

class Descriptor {
 public:
  Descriptor(const Functions& functions, Kind kind);
  Descriptor(Descriptor&& other) noexcept
      : functions_(other.functions_), raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(functions_, other.functions_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Descriptor() {
    if (raw_ != nullptr) functions_->destroy(raw_);
  }

  RawDescriptor raw() const { return raw_; }
  void set(Attribute attribute, Type type, int64_t count, const void* elements);
  void set(Attribute attribute, const std::vector<int64_t>& numbers);
  void set(Attribute attribute, Type type, int value) { set(attribute, type, 1, &value); }
  void set(Attribute attribute, const Descriptor& other) {
    set(attribute, kDescriptor, 1, &other.raw_);
  }
  void set(Attribute attribute, std::span<const RawDescriptor> others) {
    set(attribute, kDescriptor, static_cast<int64_t>(others.size()), others.data());
  }
  void finalize();

  // Returns how many elements there are, of which at most `most` were written.
  int64_t get(Attribute attribute, Type type, int64_t most, void* elements) const;

 private:
  const Functions* functions_;
  RawDescriptor raw_ = nullptr;
};

}  // namespace tenon::cudnn
