#include "kernels/cudnn/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>

#include "base/convert.h"
#include "kernels/cudnn/versions.h"
#include "kernels/device/vendor_library.h"

namespace tenon::cudnn {
namespace {

constexpr int64_t kAlignment = 16;  // of every tensor in memory, which GraphCall checks
constexpr int64_t kMostConfigs = 100;

int data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return kDataFloat;
    case DType::kF16:
      return kDataHalf;
    case DType::kBF16:
      return kDataBfloat16;
    case DType::kI32:
      return kDataInt32;
    case DType::kBool:
      return kDataBoolean;
    case DType::kF8E4M3FN:
      return kDataFp8E4M3;
    case DType::kF8E5M2:
      return kDataFp8E5M2;
    case DType::kF8E8M0:
      return kDataFp8E8M0;
    case DType::kF4E2M1:
      return kDataFp4E2M1;
    default:
      throw InternalError(fmt::format("cuDNN is not asked about {}", name(dtype)));
  }
}

int compute_version(const codegen::GpuTarget& target) {
  int number = 0;  // "sm_90a" is 90
  std::from_chars(target.arch.data() + 3, target.arch.data() + target.arch.size(), number);
  return number;
}

// What cuDNN reads of a GPU. Where we know a card by its architecture alone it gets what all of
// them have: a plan for the GPU itself is made again where it runs.
std::string device_json(const codegen::GpuTarget& target) {
  return fmt::format(
      R"({{"deviceVer":{},"multiProcessorCount":{},"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
      R"("maxSharedMemoryPerBlockOptin":{},"oversizedSharedMemoryPerBlock":0,)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"regsPerBlock":65536,)"
      R"("totalGlobalMem":25769803776,"smClockRateKHz":1800000,"l2CacheSize":41943040,)"
      R"("maxBlockSize":[1024,1024,64],"memClockRateKHz":2600000,)"
      R"("maxGridSize":[2147483647,65535,65535],"supportCoopLaunch":1,"pciDeviceId":0,)"
      R"("isTccDriver":0,"cudaDeviceId":0,"driverVer":13000,"deviceName":"{}"}})",
      compute_version(target) * 10, target.sm_count, target.shared_bytes, target.arch);
}

class GraphDescriptors {
 public:
  GraphDescriptors(const Functions& functions, const Graph& graph, std::vector<Descriptor>& parts)
      : functions_(functions), graph_(graph), parts_(parts) {
    parts_.reserve(graph.tensors.size() + 2 * graph.steps.size() + 8);
    for (size_t i = 0; i < graph.tensors.size(); ++i) add_tensor(i, graph.tensors[i]);
    for (const Step& step : graph.steps) {
      std::visit([&](const auto& known) { operations_.push_back(add(known)); }, step);
    }
  }

  std::span<const RawDescriptor> operations() const { return operations_; }

 private:
  Descriptor& make(Kind kind) { return parts_.emplace_back(functions_, kind); }

  void add_tensor(size_t number, const Tensor& tensor) {
    Descriptor& made = make(kTensor);
    made.set(kTensorDataType, kDataType, data_type(tensor.dtype));
    made.set(kTensorDims, tensor.dims);
    made.set(kTensorStrides, tensor.strides());
    made.set(kTensorId, {static_cast<int64_t>(number) + 1});
    made.set(kTensorAlignment, {kAlignment});
    if (tensor.is_virtual) set_flag(made, kTensorIsVirtual);
    if (tensor.constant) set_flag(made, kTensorIsByValue);
    if (tensor.in_tiles) made.set(kTensorReordering, kReorderingType, kTiles128x4);
    made.finalize();
    tensors_.push_back(made.raw());
  }

  static void set_flag(Descriptor& made, Attribute attribute) {
    const bool yes = true;
    made.set(attribute, kBoolean, 1, &yes);
  }

  void set_tensor(Descriptor& made, Attribute attribute, size_t number) const {
    made.set(attribute, kDescriptor, 1, &tensors_[number]);
  }

  static void set_number(Descriptor& made, Attribute attribute, float value) {
    made.set(attribute, kFloat, 1, &value);
  }

  RawDescriptor add(const ConvolutionStep& step) {
    Descriptor& convolution = make(kConvolution);
    convolution.set(kConvolutionComputeType, kDataType, kDataFloat);
    convolution.set(kConvolutionMode, kConvolutionModeType, kCrossCorrelation);
    convolution.set(kConvolutionSpatialDims, {static_cast<int64_t>(step.dilations.size())});
    convolution.set(kConvolutionPadsBefore, step.window.pads_before);
    convolution.set(kConvolutionPadsAfter, step.window.pads_after);
    convolution.set(kConvolutionStrides, step.window.strides);
    convolution.set(kConvolutionDilations, step.dilations);
    convolution.finalize();
    return step.transposed ? add_gradient(step, convolution) : add_forward(step, convolution);
  }

  RawDescriptor add_forward(const ConvolutionStep& step, const Descriptor& convolution) {
    Descriptor& made = make(kConvolutionForward);
    made.set(kConvolutionDescriptor, convolution);
    set_tensor(made, kConvolutionX, step.x);
    set_tensor(made, kConvolutionW, step.w);
    set_tensor(made, kConvolutionY, step.y);
    set_number(made, kConvolutionAlpha, 1);
    set_number(made, kConvolutionBeta, 0);
    made.finalize();
    return made.raw();
  }

  RawDescriptor add_gradient(const ConvolutionStep& step, const Descriptor& convolution) {
    Descriptor& made = make(kConvolutionBackwardData);
    made.set(kBackwardDataDescriptor, convolution);
    set_tensor(made, kBackwardDataDy, step.x);
    set_tensor(made, kBackwardDataW, step.w);
    set_tensor(made, kBackwardDataDx, step.y);
    set_number(made, kBackwardDataAlpha, 1);
    set_number(made, kBackwardDataBeta, 0);
    made.finalize();
    return made.raw();
  }

  RawDescriptor add(const PointwiseStep& step) {
    Descriptor& pointwise = make(kPointwise);
    pointwise.set(kPointwiseMode, kPointwiseModeType, step.mode);
    pointwise.set(kPointwiseComputeType, kDataType, data_type(step.compute));
    if (step.axis) pointwise.set(kPointwiseAxis, {*step.axis});
    pointwise.finalize();
    Descriptor& made = make(kPointwiseOperation);
    made.set(kPointwiseDescriptor, pointwise);
    set_tensor(made, kPointwiseX, step.x);
    set_tensor(made, kPointwiseY, step.y);
    if (step.b) {
      set_tensor(made, kPointwiseB, *step.b);
      set_number(made, kPointwiseAlpha1, 1);
      set_number(made, kPointwiseAlpha2, 1);
    }
    if (step.t) set_tensor(made, kPointwiseT, *step.t);
    made.finalize();
    return made.raw();
  }

  RawDescriptor add(const MatmulStep& step) {
    Descriptor& matmul = make(kMatmul);
    matmul.set(kMatmulComputeType, kDataType, kDataFloat);
    matmul.finalize();
    Descriptor& made = make(kMatmulOperation);
    made.set(kMatmulDescriptor, matmul);
    set_tensor(made, kMatmulA, step.a);
    set_tensor(made, kMatmulB, step.b);
    set_tensor(made, kMatmulC, step.c);
    if (step.rows) set_tensor(made, kMatmulRows, *step.rows);
    if (step.columns) set_tensor(made, kMatmulColumns, *step.columns);
    if (step.depth) set_tensor(made, kMatmulDepth, *step.depth);
    made.finalize();
    return made.raw();
  }

  RawDescriptor add(const ReductionStep& step) {
    Descriptor& reduction = make(kReduction);
    reduction.set(kReductionMode, kReductionModeType, step.mode);
    reduction.set(kReductionComputeType, kDataType, kDataFloat);
    reduction.finalize();
    Descriptor& made = make(kReductionOperation);
    made.set(kReductionDescriptor, reduction);
    set_tensor(made, kReductionX, step.x);
    set_tensor(made, kReductionY, step.y);
    made.finalize();
    return made.raw();
  }

  RawDescriptor add(const DequantizeStep& step) {
    Descriptor& made = make(kBlockDequantize);
    set_tensor(made, kDequantizeX, step.x);
    set_tensor(made, kDequantizeScale, step.scale);
    set_tensor(made, kDequantizeY, step.y);
    made.set(kDequantizeComputeType, kDataType, kDataFloat);
    made.set(kDequantizeBlock, kInt32, static_cast<int64_t>(step.block.size()), step.block.data());
    made.finalize();
    return made.raw();
  }

  RawDescriptor add(const QuantizeStep& step) {
    Descriptor& made = make(kBlockQuantize);
    set_tensor(made, kQuantizeX, step.x);
    set_tensor(made, kQuantizeY, step.y);
    set_tensor(made, kQuantizeScale, step.scale);
    made.set(kQuantizeComputeType, kDataType, kDataFloat);
    made.set(kQuantizeBlock, kInt32, 1, &step.block);
    made.finalize();
    return made.raw();
  }

  struct Fraction {
    int64_t numerator = 0, denominator = 1;
  };

  static void set_fractions(Descriptor& made, Attribute attribute,
                            const std::vector<int64_t>& numbers) {
    std::vector<Fraction> fractions;
    for (const int64_t number : numbers) fractions.push_back({number});
    made.set(attribute, kFraction, static_cast<int64_t>(fractions.size()), fractions.data());
  }

  RawDescriptor add(const PoolingStep& step) {
    Descriptor& resample = make(kResample);
    resample.set(kResampleMode, kResampleModeType, step.mode);
    resample.set(kResampleComputeType, kDataType, kDataFloat);
    resample.set(kResampleNanPropagation, kNanPropagation, kPropagateNan);
    resample.set(kResamplePaddingMode, kPaddingModeType,
                 step.mode == kMaximum ? kNegativeInfinity : kZeros);
    resample.set(kResampleSpatialDims, {static_cast<int64_t>(step.extents.size())});
    set_fractions(resample, kResampleWindow, step.extents);
    set_fractions(resample, kResamplePadsBefore, step.window.pads_before);
    set_fractions(resample, kResamplePadsAfter, step.window.pads_after);
    set_fractions(resample, kResampleStrides, step.window.strides);
    resample.finalize();
    Descriptor& made = make(kResampleForward);
    made.set(kResampleDescriptor, resample);
    set_tensor(made, kResampleX, step.x);
    set_tensor(made, kResampleY, step.y);
    const double alpha = 1, beta = 0;
    made.set(kResampleAlpha, kDouble, 1, &alpha);
    made.set(kResampleBeta, kDouble, 1, &beta);
    made.finalize();
    return made.raw();
  }

  const Functions& functions_;
  const Graph& graph_;
  std::vector<Descriptor>& parts_;
  std::vector<RawDescriptor> tensors_, operations_;
};

std::vector<PlanConstant> constants_of(const Graph& graph) {
  std::vector<PlanConstant> constants;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& tensor = graph.tensors[i];
    if (!tensor.constant) continue;
    PlanConstant& made = constants.emplace_back();
    made.id = static_cast<int64_t>(i) + 1;
    store_code(tensor.dtype, made.bytes.data(), 0, encode(tensor.dtype, *tensor.constant));
  }
  return constants;
}

// Which cuDNN opens by this name, whatever our own driver is.
bool has_driver_library() {
  static const std::array<std::string, 1> names = {"libcuda.so.1"};
  return device::open_vendor_library(names).library.has_value();
}

class PlanSearch {
 public:
  PlanSearch(const Functions& functions, const Place& place, const Rules& rules)
      : functions_(functions), place_(place), rules_(rules) {}

  PlanAnswer run(const Graph& graph) {
    ExecutionPlan made;
    made.buffers = static_cast<size_t>(std::ranges::count_if(graph.tensors, &Tensor::is_in_memory));
    made.constants = constants_of(graph);
    const GraphDescriptors described(functions_, graph, made.parts);
    Descriptor& operations = made.parts.emplace_back(functions_, kOperationGraph);
    if (place_.handle != nullptr) {
      operations.set(kGraphHandle, kHandleType, 1, &place_.handle);
    } else {
      Descriptor& device = made.parts.emplace_back(functions_, kDeviceProperties);
      const std::string json = device_json(*place_.described);
      device.set(kDeviceJson, kChar, static_cast<int64_t>(json.size()), json.data());
      device.finalize();
      device_ = &device;
    }
    operations.set(kGraphOperations, described.operations());
    operations.finalize();
    for (const Heuristics mode : {kModeA, kFallback}) {
      if (mode == kFallback && rules_.only_fast) break;
      if (try_mode(operations, mode, made)) return {std::move(made), Support::yes()};
    }
    return {std::nullopt, Support::no(refusal())};
  }

 private:
  // Engines that are compiled, those of attention and of block-scaled dots, open the driver even
  // for a GPU that is described.
  std::string refusal() const {
    const bool lacks_driver = place_.handle == nullptr && !has_driver_library();
    return fmt::format("cuDNN {} has no engine for it{}{}", version_text(functions_.version),
                       why_.empty() ? "" : fmt::format(" ({})", why_),
                       lacks_driver ? "; it names some only where libcuda.so.1 is there (the CUDA "
                                      "toolkit's stub of it will do)"
                                    : "");
  }

  bool try_mode(const Descriptor& operations, Heuristics mode, ExecutionPlan& made) {
    std::vector<Descriptor> configs;
    int64_t found = 0;
    try {
      found = ask(operations, mode, configs);
    } catch (const CallFailed& failed) {
      why_ = failed.what();
      return false;
    }
    std::vector<Usable> usable;
    for (int64_t i = 0; i < found; ++i) {
      try {
        const auto engine = usable_engine(configs[i]);
        if (engine) usable.push_back({&configs[i], {std::ssize(usable), *engine}});
      } catch (const CallFailed& failed) {
        why_ = failed.what();
      }
    }
    made.engines.clear();
    for (const Usable& each : usable) {
      if (made.engines.size() < kMostEngines) made.engines.push_back(each.choice.engine);
    }
    put_wanted_first(usable);
    for (const Usable& each : usable) {
      if (std::ranges::count(rules_.failed, each.choice) > 0) continue;
      try {
        if (!take(each, made)) continue;
        made.parts.push_back(std::move(*each.config));
        return true;
      } catch (const CallFailed& failed) {
        why_ = failed.what();
      }
    }
    return false;
  }

  struct Usable {
    Descriptor* config = nullptr;
    EngineChoice choice;
  };

  void put_wanted_first(std::vector<Usable>& usable) const {
    if (!rules_.wanted) return;
    const EngineChoice wanted = *rules_.wanted;
    auto found = usable.end();
    if (wanted.place >= 0 && wanted.place < std::ssize(usable)) {
      found = usable.begin() + wanted.place;
    }
    if (found == usable.end() || found->choice.engine != wanted.engine) {
      found = std::ranges::find_if(
          usable, [&](const Usable& each) { return each.choice.engine == wanted.engine; });
    }
    if (found != usable.end()) std::rotate(usable.begin(), found, found + 1);
  }

  int64_t ask(const Descriptor& operations, Heuristics mode, std::vector<Descriptor>& configs) {
    Descriptor heuristics(functions_, kHeuristics);
    heuristics.set(kHeuristicsGraph, operations);
    heuristics.set(kHeuristicsOf, kHeuristicsMode, mode);
    if (device_ != nullptr) heuristics.set(kHeuristicsDevice, *device_);
    heuristics.finalize();
    std::vector<RawDescriptor> raw;
    for (int64_t i = 0; i < kMostConfigs; ++i) {
      raw.push_back(configs.emplace_back(functions_, kEngineConfig).raw());
    }
    return std::min(heuristics.get(kHeuristicsResults, kDescriptor, kMostConfigs, raw.data()),
                    kMostConfigs);
  }

  bool is_forbidden(int note) const {
    return note == kTensorCore ? !rules_.tensor_cores
                               : note >= kDownConvertInputs && note <= kWinograd13x13;
  }

  // cuDNN's number of the engine, where it is exact enough.
  std::optional<int64_t> usable_engine(const Descriptor& config) {
    Descriptor engine(functions_, kEngine);
    RawDescriptor raw = engine.raw();
    config.get(kConfigEngine, kDescriptor, 1, &raw);
    std::array<int, 32> notes{};
    const int64_t count = std::min<int64_t>(
        engine.get(kEngineNumericalNotes, kNumericalNote, notes.size(), notes.data()),
        notes.size());
    if (std::any_of(notes.begin(), notes.begin() + count,
                    [&](int note) { return is_forbidden(note); })) {
      if (why_.empty()) why_ = "its engines are less exact than asked for";
      return std::nullopt;
    }
    int64_t number = 0;
    engine.get(kEngineIndex, kInt64, 1, &number);
    return number;
  }

  bool take(const Usable& usable, ExecutionPlan& made) {
    made.chosen = usable.choice;
    if (!rules_.builds) return true;
    Descriptor plan(functions_, kExecutionPlan);
    if (place_.handle != nullptr) plan.set(kPlanHandle, kHandleType, 1, &place_.handle);
    if (device_ != nullptr) plan.set(kPlanDevice, *device_);
    plan.set(kPlanConfig, *usable.config);
    plan.finalize();
    plan.get(kPlanWorkspace, kInt64, 1, &made.workspace);
    if (made.workspace > rules_.workspace) {
      why_ = fmt::format("it asks for {} bytes of workspace", made.workspace);
      return false;
    }
    made.plan.emplace(std::move(plan));
    return true;
  }

  const Functions& functions_;
  const Place place_;
  const Rules& rules_;
  const Descriptor* device_ = nullptr;
  std::string why_;  // the last thing that did not do
};

}  // namespace

PlanAnswer make_plan(const Functions& functions, const Place& place, const Graph& graph,
                     const Rules& rules) {
  if (place.handle == nullptr) {
    Support answer =
        plans_without_device(functions.version, compute_version(*place.described) / 10);
    if (!answer) return {std::nullopt, std::move(answer)};
  }
  try {
    return PlanSearch(functions, place, rules).run(graph);
  } catch (const CallFailed& failed) {
    return {std::nullopt, Support::no(failed.what())};
  }
}

void execute(const Functions& functions, Handle handle, const ExecutionPlan& plan,
             std::span<void* const> buffers) {
  if (buffers.size() != plan.buffers + 1) throw InternalError("a plan of cuDNN lacks buffers");
  std::vector<int64_t> ids(plan.buffers);
  std::iota(ids.begin(), ids.end(), 1);
  std::vector<const void*> pointers(buffers.begin(), buffers.end() - 1);
  for (const PlanConstant& constant : plan.constants) {
    ids.push_back(constant.id);
    pointers.push_back(constant.bytes.data());
  }
  Descriptor pack(functions, kVariantPack);
  pack.set(kPackIds, ids);
  pack.set(kPackPointers, kPointer, static_cast<int64_t>(pointers.size()), pointers.data());
  pack.set(kPackWorkspace, kPointer, 1, &buffers.back());
  pack.finalize();
  check(functions, functions.execute(handle, plan.plan->raw(), pack.raw()), "cudnnBackendExecute");
}

}  // namespace tenon::cudnn
