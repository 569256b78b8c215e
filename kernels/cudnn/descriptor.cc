#include "kernels/cudnn/descriptor.h"

#include <fmt/format.h>

#include "kernels/cudnn/versions.h"

namespace tenon::cudnn {

void check(const Functions& functions, Status status, std::string_view what) {
  if (status == kSuccess) return;
  throw CallFailed(fmt::format("cuDNN {}: {} failed: {}", version_text(functions.version), what,
                               functions.words(status)));
}

Descriptor::Descriptor(const Functions& functions, Kind kind) : functions_(&functions) {
  check(functions, functions.create(kind, &raw_), "cudnnBackendCreateDescriptor");
}

void Descriptor::set(Attribute attribute, Type type, int64_t count, const void* elements) {
  check(*functions_, functions_->set(raw_, attribute, type, count, elements),
        fmt::format("cudnnBackendSetAttribute({})", static_cast<int>(attribute)));
}

void Descriptor::set(Attribute attribute, const std::vector<int64_t>& numbers) {
  set(attribute, kInt64, static_cast<int64_t>(numbers.size()), numbers.data());
}

void Descriptor::finalize() {
  check(*functions_, functions_->finalize(raw_), "cudnnBackendFinalize");
}

int64_t Descriptor::get(Attribute attribute, Type type, int64_t most, void* elements) const {
  int64_t count = 0;
  check(*functions_, functions_->get(raw_, attribute, type, most, &count, elements),
        fmt::format("cudnnBackendGetAttribute({})", static_cast<int>(attribute)));
  return count;
}

}  // namespace tenon::cudnn
