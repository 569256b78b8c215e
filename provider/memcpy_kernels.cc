#include "provider/memcpy_kernels.h"

#include <utility>
#include <vector>

#include "kernels/device/stream.h"
#include "provider/api.h"
#include "provider/data_transfer.h"
#include "provider/guard.h"
#include "provider/names.h"

namespace tenon::provider {
namespace {

const OrtApi& api() { return *runtime().api; }
const OrtEpApi& ep_api() { return *runtime().ep; }

using Builder = std::unique_ptr<OrtKernelDefBuilder, void (*)(OrtKernelDefBuilder*)>;
using Definition = std::unique_ptr<OrtKernelDef, void (*)(OrtKernelDef*)>;

class Memcpy : public OrtKernelImpl {
 public:
  explicit Memcpy(std::shared_ptr<device::Device> device)
      : OrtKernelImpl{}, device_(std::move(device)) {
    ort_version_supported = runtime().version;
    Compute = [](OrtKernelImpl* it, OrtKernelContext* context) noexcept {
      return guarded([&] { static_cast<Memcpy*>(it)->compute(*context); });
    };
    Release = [](OrtKernelImpl* it) noexcept { delete static_cast<Memcpy*>(it); };
  }

 private:
  void compute(OrtKernelContext& context) const {
    const OrtValue* from = nullptr;
    check(api().KernelContext_GetInput(&context, 0, &from));
    ONNXTensorElementDataType type{};
    const int64_t* dims = nullptr;
    size_t rank = 0;
    check(api().GetTensorElementTypeAndShapeDataReference(from, &type, &dims, &rank));
    OrtValue* to = nullptr;
    check(api().KernelContext_GetOutput(&context, 0, dims, rank, &to));
    void* handle = nullptr;
    check(api().KernelContext_GetGPUComputeStream(&context, &handle));
    device::Stream stream(device_, static_cast<device::StreamHandle>(handle));
    copy_tensor(*from, *to, stream);
  }

  std::shared_ptr<device::Device> device_;
};

OrtStatus* ORT_API_CALL create(void* device, const OrtKernelInfo*,
                               OrtKernelImpl** kernel) noexcept {
  *kernel = nullptr;
  return guarded(
      [&] { *kernel = new Memcpy(*static_cast<std::shared_ptr<device::Device>*>(device)); });
}

// Every tensor type that this runtime knows.
std::vector<const OrtDataType*> tensor_types() {
  std::vector<const OrtDataType*> types;
  for (int type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
       type <= ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0; ++type) {
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) continue;
    const OrtDataType* found = nullptr;
    OrtStatus* status =
        ep_api().GetTensorDataType(static_cast<ONNXTensorElementDataType>(type), &found);
    if (status != nullptr) {
      api().ReleaseStatus(status);
    } else if (found != nullptr) {
      types.push_back(found);
    }
  }
  return types;
}

Definition define(const char* op, bool from_host) {
  OrtKernelDefBuilder* raw = nullptr;
  check(ep_api().CreateKernelDefBuilder(&raw));
  const Builder builder(raw, [](OrtKernelDefBuilder* b) { ep_api().ReleaseKernelDefBuilder(b); });
  check(ep_api().KernelDefBuilder_SetOperatorType(raw, op));
  check(ep_api().KernelDefBuilder_SetDomain(raw, ""));
  check(ep_api().KernelDefBuilder_SetSinceVersion(raw, 1, 1));
  check(ep_api().KernelDefBuilder_SetExecutionProvider(raw, kProviderName));
  if (from_host) {
    check(ep_api().KernelDefBuilder_SetInputMemType(raw, 0, OrtMemTypeCPUInput));
  } else {
    check(ep_api().KernelDefBuilder_SetOutputMemType(raw, 0, OrtMemTypeCPUOutput));
  }
  const std::vector<const OrtDataType*> types = tensor_types();
  check(ep_api().KernelDefBuilder_AddTypeConstraint(raw, "T", types.data(), types.size()));
  OrtKernelDef* definition = nullptr;
  check(ep_api().KernelDefBuilder_Build(raw, &definition));
  return {definition, [](OrtKernelDef* d) { ep_api().ReleaseKernelDef(d); }};
}

}  // namespace

MemcpyKernels::MemcpyKernels(std::shared_ptr<device::Device> device)
    : device_(std::move(device)),
      registry_(nullptr, [](OrtKernelRegistry* r) { ep_api().ReleaseKernelRegistry(r); }) {
  OrtKernelRegistry* raw = nullptr;
  check(ep_api().CreateKernelRegistry(&raw));
  registry_.reset(raw);
  for (const bool from_host : {true, false}) {
    const Definition definition = define(from_host ? "MemcpyFromHost" : "MemcpyToHost", from_host);
    check(ep_api().KernelRegistry_AddKernel(raw, definition.get(), create, &device_));
  }
}

}  // namespace tenon::provider
