// cuDNN's functions on host memory, with faults on demand. Everything happens under one lock.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/kernels/cudnn/stub/control.h"
#include "tests/kernels/cudnn/stub/objects.h"

#define TENON_VISIBLE extern "C" __attribute__((visibility("default")))

using namespace stub_cudnn;
using namespace tenon::cudnn;

namespace {

constexpr int kSucceeds = 0, kBadParam = 2000, kNotSupported = 3000;

struct State {
  std::mutex mutex;
  int version = 91900;
  std::set<std::string> faults;
  std::map<std::string, int> calls;
  std::string last_error;
  int live = 0, last_engine = -1;
  int64_t workspace = 64;
};

State& state() {
  static State& state = *new State;
  return state;
}

// Under the lock: counts the call; 0, or the error that it was told to meet.
int begin(const char* function) {
  ++state().calls[function];
  if (state().faults.erase(function) == 0) return kSucceeds;
  state().last_error = std::string("the stub's ") + function + " was told to fail";
  return kNotSupported;
}

int refuse(const std::string& why) {
  state().last_error = why;
  return kBadParam;
}

std::vector<int> notes_of(int engine) {
  if (engine == kStubWinograd) return {kWinograd};
  if (engine == kStubTensorCore) return {kTensorCore};
  return {};
}

// What a descriptor needs before it is finalized.
std::vector<int> needed(int kind) {
  switch (kind) {
    case kTensor:
      return {kTensorDataType, kTensorDims, kTensorStrides, kTensorId, kTensorAlignment};
    case kConvolutionForward:
      return {kConvolutionDescriptor, kConvolutionX, kConvolutionW, kConvolutionY};
    case kConvolutionBackwardData:
      return {kBackwardDataDescriptor, kBackwardDataDx, kBackwardDataW, kBackwardDataDy};
    case kMatmulOperation:
      return {kMatmulDescriptor, kMatmulA, kMatmulB, kMatmulC};
    case kReductionOperation:
      return {kReductionDescriptor, kReductionX, kReductionY};
    case kOperationGraph:
      return {kGraphOperations};
    case kHeuristics:
      return {kHeuristicsGraph, kHeuristicsOf};
    case kExecutionPlan:
      return {kPlanConfig};
    case kVariantPack:
      return {kPackIds, kPackPointers, kPackWorkspace};
    default:
      return {};
  }
}

int get_results(const Object& heuristics, int64_t most, int64_t* count, void* elements) {
  const bool fast = heuristics.one<int>(kHeuristicsOf) == kModeA;
  const std::vector<int> engines =
      fast ? std::vector{kStubWinograd, kStubTensorCore, kStubPlain} : std::vector{kStubSlow};
  auto* configs = static_cast<Object**>(elements);
  *count = std::min<int64_t>(most, static_cast<int64_t>(engines.size()));
  for (int64_t i = 0; i < *count; ++i) {
    *configs[i] = {kEngineConfig, true, engines[i], heuristics.attributes};
  }
  return kSucceeds;
}

}  // namespace

TENON_VISIBLE size_t cudnnGetVersion() { return static_cast<size_t>(state().version); }
TENON_VISIBLE const char* cudnnGetErrorString(int status) {
  return status == kNotSupported ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}
TENON_VISIBLE void cudnnGetLastErrorString(char* text, size_t bytes) {
  const std::lock_guard lock(state().mutex);
  std::strncpy(text, state().last_error.c_str(), bytes);
}

TENON_VISIBLE int cudnnCreate(void** made) {
  const std::lock_guard lock(state().mutex);
  if (const int fault = begin("cudnnCreate"); fault != 0) return fault;
  *made = new int;
  return kSucceeds;
}
TENON_VISIBLE int cudnnDestroy(void* handle) {
  delete static_cast<int*>(handle);
  return kSucceeds;
}
TENON_VISIBLE int cudnnSetStream(void*, void*) {
  const std::lock_guard lock(state().mutex);
  return begin("cudnnSetStream");
}

TENON_VISIBLE int cudnnBackendCreateDescriptor(int kind, void** made) {
  const std::lock_guard lock(state().mutex);
  if (const int fault = begin("cudnnBackendCreateDescriptor"); fault != 0) return fault;
  *made = new Object{kind, false, 0, {}};
  ++state().live;
  return kSucceeds;
}
TENON_VISIBLE int cudnnBackendDestroyDescriptor(void* descriptor) {
  const std::lock_guard lock(state().mutex);
  delete static_cast<Object*>(descriptor);
  --state().live;
  return kSucceeds;
}

TENON_VISIBLE int cudnnBackendSetAttribute(void* descriptor, int attribute, int type, int64_t count,
                                           const void* elements) {
  const std::lock_guard lock(state().mutex);
  if (const int fault = begin("cudnnBackendSetAttribute"); fault != 0) return fault;
  auto& object = *static_cast<Object*>(descriptor);
  if (object.finalized || bytes_of(type) == 0) return refuse("an attribute that cannot be set");
  const auto* bytes = static_cast<const std::byte*>(elements);
  object.attributes[attribute] = {type, {bytes, bytes + count * bytes_of(type)}};
  return kSucceeds;
}

TENON_VISIBLE int cudnnBackendFinalize(void* descriptor) {
  const std::lock_guard lock(state().mutex);
  if (const int fault = begin("cudnnBackendFinalize"); fault != 0) return fault;
  auto& object = *static_cast<Object*>(descriptor);
  for (const int attribute : needed(object.kind)) {
    if (!object.attributes.contains(attribute)) {
      return refuse("descriptor " + std::to_string(object.kind) + " lacks attribute " +
                    std::to_string(attribute));
    }
  }
  if (object.kind == kExecutionPlan) object.engine = object.object(kPlanConfig).engine;
  object.finalized = true;
  return kSucceeds;
}

TENON_VISIBLE int cudnnBackendGetAttribute(void* descriptor, int attribute, int, int64_t most,
                                           int64_t* count, void* elements) {
  const std::lock_guard lock(state().mutex);
  if (const int fault = begin("cudnnBackendGetAttribute"); fault != 0) return fault;
  const auto& object = *static_cast<const Object*>(descriptor);
  if (!object.finalized) return refuse("read before it was finalized");
  if (attribute == kHeuristicsResults) return get_results(object, most, count, elements);
  *count = 1;
  if (attribute == kConfigEngine) {
    **static_cast<Object**>(elements) = {kEngine, true, object.engine, {}};
  } else if (attribute == kEngineNumericalNotes) {
    const std::vector<int> notes = notes_of(object.engine);
    *count = static_cast<int64_t>(notes.size());
    std::ranges::copy(notes, static_cast<int*>(elements));
  } else {
    *static_cast<int64_t*>(elements) =
        attribute == kEngineIndex ? object.engine : state().workspace;
  }
  return kSucceeds;
}

TENON_VISIBLE int cudnnBackendExecute(void*, void* plan, void* pack) {
  const std::lock_guard lock(state().mutex);
  if (const int fault = begin("cudnnBackendExecute"); fault != 0) return fault;
  const auto& planned = *static_cast<const Object*>(plan);
  state().last_engine = planned.engine;
  compute(planned.object(kPlanConfig).object(kHeuristicsGraph), *static_cast<const Object*>(pack));
  return kSucceeds;
}

namespace stub_cudnn {
size_t bytes_of(int type) {
  switch (type) {
    case kBoolean:
    case kChar:
      return 1;
    case kDataType:
    case kFloat:
    case kConvolutionModeType:
    case kHeuristicsMode:
    case kNanPropagation:
    case kPointwiseModeType:
    case kResampleModeType:
    case kPaddingModeType:
    case kReductionModeType:
    case kReorderingType:
    case kInt32:
      return 4;
    case kHandleType:
    case kInt64:
    case kDouble:
    case kPointer:
    case kDescriptor:
      return 8;
    case kFraction:
      return 16;
    default:
      return 0;
  }
}
}  // namespace stub_cudnn

TENON_VISIBLE void stubCudnnSetVersion(int version) { state().version = version; }
TENON_VISIBLE void stubCudnnFail(const char* function) { state().faults.insert(function); }
TENON_VISIBLE int stubCudnnPending() { return static_cast<int>(state().faults.size()); }
TENON_VISIBLE int stubCudnnLive() { return state().live; }
TENON_VISIBLE int stubCudnnCalls(const char* function) { return state().calls[function]; }
TENON_VISIBLE void stubCudnnSetWorkspace(int64_t bytes) { state().workspace = bytes; }
TENON_VISIBLE int stubCudnnLastEngine() { return state().last_engine; }
