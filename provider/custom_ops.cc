#include "provider/custom_ops.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <span>
#include <string_view>

#include "base/error.h"
#include "distributed/rendezvous/launch_place.h"
#include "provider/api.h"
#include "provider/guard.h"
#include "provider/names.h"

namespace tenon::provider {
namespace {

// The smallest model: y = Identity(x), spelled as protobuf writes it.
using namespace std::string_view_literals;
constexpr std::string_view kIdentityModel =
    "\010\010\072\067"                                     // ir_version 8, then the graph
    "\012\020\012\001x\022\001y\042\010Identity\022\001g"  // Identity(x) -> y, in graph "g"
    "Z\017\012\001x\022\012\012\010\010\001\022\004\012\002\010\001"  // input x: float[1]
    "b\017\012\001y\022\012\012\010\010\001\022\004\012\002\010\001"  // output y: float[1]
    "B\002\020\015"sv;                                                // opset 13

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
  CustomOp(const Schema& row, std::span<const Schema> rows)
      : OrtCustomOp{}, schema(row), all(rows) {
    fill_callbacks();
  }

  void fill_callbacks();
  // The runtime asks the first row of a name for all of them.
  void infer(OrtShapeInferContext& context) const;
  const Schema& fitting(const OrtShapeInferContext& context) const;

  const Schema& schema;
  const std::span<const Schema> all;  // of the domain
};

namespace {

const Schema& schema_of(const OrtCustomOp* op) { return static_cast<const CustomOp*>(op)->schema; }

int64_t attribute(const OrtShapeInferContext& context, const char* name, int64_t otherwise = 0) {
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

// What the runtime knows of an input or is told of an output. A rank of 0 may also be an unknown
// one.
struct Known {
  ElementType type = kAnyType;
  std::vector<int64_t> dims;
  std::vector<const char*> names;
};

// Of no type where the node does not have the input.
Known known_of(const OrtShapeInferContext& context, size_t index) {
  Known known;
  size_t count = 0;
  check(api().ShapeInferContext_GetInputCount(&context, &count));
  if (index >= count) return known;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api().ShapeInferContext_GetInputTypeShape(&context, index, &info));
  check(api().GetTensorElementType(info, &known.type));
  if (known.type == kAnyType) return known;
  size_t rank = 0;
  check(api().GetDimensionsCount(info, &rank));
  known.dims.resize(rank);
  known.names.resize(rank);
  if (rank == 0) return known;
  check(api().GetDimensions(info, known.dims.data(), rank));
  check(api().GetSymbolicDimensions(info, known.names.data(), rank));
  return known;
}

void tell(OrtShapeInferContext& context, size_t index, Known output) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api().CreateTensorTypeAndShapeInfo(&info));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> owner(
      info, [](OrtTensorTypeAndShapeInfo* p) { api().ReleaseTensorTypeAndShapeInfo(p); });
  check(api().SetTensorElementType(info, output.type));
  if (!output.dims.empty()) {
    check(api().SetDimensions(info, output.dims.data(), output.dims.size()));
    check(api().SetSymbolicDimensions(info, output.names.data(), output.names.size()));
  }
  check(api().ShapeInferContext_SetOutputTypeShape(&context, index, info));
}

ElementType type_of(const OrtShapeInferContext& context, const Output& output, ElementType first) {
  if (output.rule == OutputType::kAsFirstInput) return first;
  if (output.rule == OutputType::kNamed) {
    const int64_t named = attribute(context, "output_dtype");
    if (may_be_named(named)) return static_cast<ElementType>(named);
  }
  return output.type == kAnyType ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT : output.type;
}

void divide_into_blocks(const OrtShapeInferContext& context, int64_t otherwise, Known& known) {
  const int64_t block = attribute(context, "block_size", otherwise);
  if (known.dims.empty() || block <= 0) return;
  if (known.dims.back() >= 0) known.dims.back() = (known.dims.back() + block - 1) / block;
  known.names.back() = "";
}

void gather(const OrtShapeInferContext& context, Known& known) {
  const auto rank = static_cast<int64_t>(known.dims.size());
  const int64_t axis = attribute(context, "axis", 1), ranks = attribute(context, "group_size", 1);
  const int64_t at = axis < 0 ? axis + rank : axis;
  if (at < 0 || at >= rank) return;
  if (known.dims[at] >= 0) known.dims[at] *= std::max<int64_t>(1, ranks);
  if (ranks != 1) known.names[at] = "";
}

}  // namespace

const Schema& CustomOp::fitting(const OrtShapeInferContext& context) const {
  std::vector<ElementType> given;
  for (size_t i = 0; i < schema.inputs.size(); ++i) given.push_back(known_of(context, i).type);
  const auto fits = [&](const Schema& row) {
    if (std::string_view(row.name) != schema.name) return false;
    for (size_t i = 0; i < given.size(); ++i) {
      const bool is_absent = given[i] == kAnyType && i >= row.required;
      if (!is_absent && row.inputs[i] != kAnyType && row.inputs[i] != given[i]) return false;
    }
    return true;
  };
  const auto found = std::ranges::find_if(all, fits);
  return found == all.end() ? schema : *found;
}

void CustomOp::infer(OrtShapeInferContext& context) const {
  const Schema& row = fitting(context);
  const Known first = known_of(context, 0);
  for (size_t i = 0; i < row.outputs.size(); ++i) {
    const Output& output = row.outputs[i];
    Known known = first;
    known.type = type_of(context, output, first.type);
    if (output.shape == OutputShape::kBlocks) divide_into_blocks(context, output.block, known);
    if (output.shape == OutputShape::kGathered) gather(context, known);
    // The runtime took the type from the row already. To tell it again would make a scalar of what
    // may have any rank.
    if (known.dims.empty() && known.type == output.type) continue;
    tell(context, i, known);
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
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) {
    return i < schema_of(op).required ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  };
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

void CustomOps::add_domain(const char* name, std::vector<Schema> schemas) {
  OrtCustomOpDomain* domain = nullptr;
  check(api().CreateCustomOpDomain(name, &domain));
  domains_.push_back(domain);
  schemas_.push_back(std::move(schemas));
  for (const Schema& row : schemas_.back()) {
    ops_.push_back(std::make_unique<CustomOp>(row, schemas_.back()));
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
