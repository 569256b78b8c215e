#include "provider/custom_ops.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

#include "base/error.h"
#include "distributed/rendezvous/launch_place.h"
#include "provider/api.h"
#include "provider/guard.h"
#include "provider/names.h"

namespace tenon::provider {
namespace {

using Type = ONNXTensorElementDataType;
constexpr Type kAny = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
constexpr Type kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr Type kHalf = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
constexpr Type kBFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
constexpr Type kByte = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
constexpr Type kInt4 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4;
constexpr Type kFp4 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1;
constexpr Type kFp8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN;
constexpr Type kE8M0 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0;

// The smallest model: y = Identity(x), spelled as protobuf writes it.
using namespace std::string_view_literals;
constexpr std::string_view kIdentityModel =
    "\010\010\072\067"                                     // ir_version 8, then the graph
    "\012\020\012\001x\022\001y\042\010Identity\022\001g"  // Identity(x) -> y, in graph "g"
    "Z\017\012\001x\022\012\012\010\010\001\022\004\012\002\010\001"  // input x: float[1]
    "b\017\012\001y\022\012\012\010\010\001\022\004\012\002\010\001"  // output y: float[1]
    "B\002\020\015"sv;                                                // opset 13

// How a dim of an output follows from the first input's.
enum class OutputShape {
  kSame,
  kBlocks,    // last dim divided by block_size
  kGathered,  // dim `axis` times group_size
};

struct Output {
  Type type;  // kAny: the type that attribute `output_dtype` names, f32 without it
  OutputShape shape;
  bool as_input = false;  // instead: the type of the first input
};

}  // namespace

struct Schema {
  const char* name;
  std::vector<Type> inputs;
  std::vector<Output> outputs;
};

namespace {

// Several rows of one name are alternatives by input type.
std::vector<Schema> trt_schemas() {
  std::vector<Schema> rows;
  for (const Type x : {kFloat, kHalf, kBFloat}) {
    rows.push_back({"TRT_FP4DynamicQuantize",
                    {x, kFloat},
                    {{kFp4, OutputShape::kSame}, {kFp8, OutputShape::kBlocks}}});
    rows.push_back({"TRT_MXFP8DynamicQuantize",
                    {x},
                    {{kFp8, OutputShape::kSame}, {kByte, OutputShape::kBlocks}}});
    rows.push_back({"TRT_FP8QuantizeLinear", {x, x}, {{kFp8, OutputShape::kSame}}});
    rows.push_back({"TRT_FP8DequantizeLinear", {kFp8, x}, {{x, OutputShape::kSame}}});
    rows.push_back({"TRT_INT4QuantizeLinear", {x, x}, {{kInt4, OutputShape::kSame}}});
    rows.push_back({"TRT_INT4DequantizeLinear", {kInt4, x}, {{x, OutputShape::kSame}}});
    rows.push_back({"DequantizeLinear", {kInt4, x}, {{x, OutputShape::kSame}}});
  }
  for (const Type scale : {kByte, kE8M0}) {
    rows.push_back({"TRT_MXFP8DequantizeLinear", {kFp8, scale}, {{kAny, OutputShape::kSame}}});
  }
  return rows;
}

// ONNX Runtime's own, which it only knows where it was built with NCCL.
std::vector<Schema> collective_schemas() {
  return {
      {"AllReduce", {kAny}, {{kAny, OutputShape::kSame, true}}},
      {"AllGather", {kAny}, {{kAny, OutputShape::kGathered, true}}},
      {"AllToAll", {kAny}, {{kAny, OutputShape::kSame, true}}},
  };
}

// As a launcher's variables say, or the user.
bool is_one_of_several() {
  const char* asked = std::getenv("TENON_COLLECTIVE_OPS");
  if (asked != nullptr && std::string_view(asked) == "1") return true;
  try {
    distributed::LaunchOptions options;
    options.address = "127.0.0.1:1";  // where they meet is the session's business
    return distributed::launch_place(options, distributed::launch_variables(), ::getuid()).size > 1;
  } catch (const UserError&) {
    return false;  // a session that asks for ranks is told
  }
}

const OrtApi& api() { return *runtime().api; }

}  // namespace

struct CustomOp : OrtCustomOp {
  explicit CustomOp(Schema row) : OrtCustomOp{}, schema(std::move(row)) { fill_callbacks(); }

  void fill_callbacks();
  void infer(OrtShapeInferContext& context) const;

  Schema schema;
};

namespace {

const Schema& schema_of(const OrtCustomOp* op) { return static_cast<const CustomOp*>(op)->schema; }

int64_t attribute(const OrtShapeInferContext& context, const char* name, int64_t otherwise) {
  const OrtOpAttr* found = nullptr;
  if (OrtStatus* status = api().ShapeInferContext_GetAttribute(&context, name, &found)) {
    api().ReleaseStatus(status);
    return otherwise;
  }
  int64_t value = otherwise;
  size_t size = 0;
  check(api().ReadOpAttr(found, ORT_OP_ATTR_INT, &value, sizeof(value), &size));
  return value;
}

// ONNX's TensorProto numbering, as the attribute has it.
Type output_dtype(int64_t onnx_type) {
  switch (onnx_type) {
    case 10:
      return kHalf;
    case 16:
      return kBFloat;
    default:
      return kFloat;
  }
}

void gather(const OrtShapeInferContext& context, std::vector<int64_t>& dims,
            std::vector<const char*>& names) {
  const auto rank = static_cast<int64_t>(dims.size());
  const int64_t axis = attribute(context, "axis", 1), ranks = attribute(context, "group_size", 1);
  const int64_t at = axis < 0 ? axis + rank : axis;
  if (at < 0 || at >= rank) return;
  if (dims[at] >= 0) dims[at] *= std::max<int64_t>(1, ranks);
  if (ranks != 1) names[at] = "";
}

}  // namespace

void CustomOp::infer(OrtShapeInferContext& context) const {
  OrtTensorTypeAndShapeInfo* input = nullptr;
  check(api().ShapeInferContext_GetInputTypeShape(&context, 0, &input));
  size_t rank = 0;
  check(api().GetDimensionsCount(input, &rank));
  std::vector<int64_t> dims(rank);
  std::vector<const char*> names(rank);
  if (rank > 0) {
    check(api().GetDimensions(input, dims.data(), rank));
    check(api().GetSymbolicDimensions(input, names.data(), rank));
  }
  const int64_t block = attribute(context, "block_size", 0);
  const Type wanted = output_dtype(attribute(context, "output_dtype", 1));
  Type first = kFloat;
  check(api().GetTensorElementType(input, &first));
  for (size_t i = 0; i < schema.outputs.size(); ++i) {
    std::vector<int64_t> out_dims = dims;
    std::vector<const char*> out_names = names;
    if (schema.outputs[i].shape == OutputShape::kBlocks && rank > 0 && block > 0) {
      if (out_dims.back() >= 0) out_dims.back() = (out_dims.back() + block - 1) / block;
      out_names.back() = "";
    }
    if (schema.outputs[i].shape == OutputShape::kGathered) gather(context, out_dims, out_names);
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(api().CreateTensorTypeAndShapeInfo(&info));
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> owner(
        info, [](OrtTensorTypeAndShapeInfo* p) { api().ReleaseTensorTypeAndShapeInfo(p); });
    const Output& output = schema.outputs[i];
    const Type type = output.as_input ? first : output.type == kAny ? wanted : output.type;
    check(api().SetTensorElementType(info, type));
    if (rank > 0) {
      check(api().SetDimensions(info, out_dims.data(), rank));
      check(api().SetSymbolicDimensions(info, out_names.data(), rank));
    }
    check(api().ShapeInferContext_SetOutputTypeShape(&context, i, info));
  }
}

void CustomOp::fill_callbacks() {
  version = runtime().version;
  GetName = [](const OrtCustomOp* op) { return schema_of(op).name; };
  GetExecutionProviderType = [](const OrtCustomOp*) { return kProviderName; };
  GetInputType = [](const OrtCustomOp* op, size_t i) { return schema_of(op).inputs[i]; };
  GetInputTypeCount = [](const OrtCustomOp* op) { return schema_of(op).inputs.size(); };
  GetOutputType = [](const OrtCustomOp* op, size_t i) { return schema_of(op).outputs[i].type; };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return schema_of(op).outputs.size(); };
  GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
  GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
  CreateKernelV2 = [](const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*,
                      void** kernel) -> OrtStatus* {
    *kernel = nullptr;
    return nullptr;
  };
  KernelComputeV2 = [](void*, OrtKernelContext*) -> OrtStatus* {
    return make_status(ORT_NOT_IMPLEMENTED,
                       "this op runs only as part of a Tenon partition; `tenon explain` tells why "
                       "the node was not claimed");
  };
  KernelDestroy = [](void*) {};
  InferOutputShapeFn = [](const OrtCustomOp* op, OrtShapeInferContext* context) -> OrtStatus* {
    return guarded([&] { static_cast<const CustomOp*>(op)->infer(*context); });
  };
}

CustomOps::CustomOps() {
  add_domain("trt", trt_schemas());
  // A second `com.microsoft` keeps the runtime from writing context models, so only processes that
  // are one of several have it.
  if (is_one_of_several()) add_domain("com.microsoft", collective_schemas());
}

void CustomOps::add_domain(const char* name, const std::vector<Schema>& schemas) {
  OrtCustomOpDomain* domain = nullptr;
  check(api().CreateCustomOpDomain(name, &domain));
  domains_.push_back(domain);
  for (const Schema& row : schemas) {
    ops_.push_back(std::make_unique<CustomOp>(row));
    check(api().CustomOpDomain_Add(domain, ops_.back().get()));
  }
}

CustomOps::~CustomOps() {
  for (OrtCustomOpDomain* domain : domains_) api().ReleaseCustomOpDomain(domain);
}

// ONNX Runtime asks whether it knows a domain's name and then adds it, without a lock: of two first
// sessions on two threads one fails with "the domain is already exist". One session of an Identity,
// before any caller's options hold the domain, makes the name known. Where it cannot be made,
// nothing is lost but that.
void CustomOps::make_domains_known() const {
  OrtEnv* env = nullptr;  // the caller's own: there is one in a process
  OrtSessionOptions* options = nullptr;
  OrtSession* session = nullptr;
  const auto done = [](OrtStatus* status) {
    if (status != nullptr) api().ReleaseStatus(status);
    return status == nullptr;
  };
  const bool ready = done(api().CreateEnv(ORT_LOGGING_LEVEL_WARNING, "Tenon", &env)) &&
                     done(api().CreateSessionOptions(&options)) &&
                     done(api().SetIntraOpNumThreads(options, 1));
  for (OrtCustomOpDomain* domain : domains_) {
    if (ready) done(api().AddCustomOpDomain(options, domain));
  }
  if (ready) {
    done(api().CreateSessionFromArray(env, kIdentityModel.data(), kIdentityModel.size(), options,
                                      &session));
  }
  api().ReleaseSession(session);
  api().ReleaseSessionOptions(options);
  if (env != nullptr) api().ReleaseEnv(env);
}

void CustomOps::copy_domains(OrtCustomOpDomain** into, size_t count) const {
  static std::once_flag known;
  std::call_once(known, [&] { make_domains_known(); });
  std::copy_n(domains_.begin(), std::min(count, domains_.size()), into);
}

}  // namespace tenon::provider
