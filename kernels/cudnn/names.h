// The numbers that cuDNN's graph API goes by, as far as we use them (cudnn_graph.h). They are part
// of its binary interface; a test compares them with the header.
#pragma once

namespace tenon::cudnn {

// cudnnBackendDescriptorType_t
enum Kind : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kExecutionPlan = 5,
  kConvolutionForward = 10,
  kConvolutionBackwardData = 12,
  kPointwiseOperation = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kMatmulOperation = 19,
  kReduction = 21,
  kReductionOperation = 22,
  kResample = 24,
  kResampleForward = 25,
  kBlockQuantize = 36,
  kBlockDequantize = 37,
  kDeviceProperties = 38,
};

// cudnnBackendAttributeType_t
enum Type : int {
  kHandleType = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kFloat = 4,
  kDouble = 5,
  kPointer = 6,
  kConvolutionModeType = 7,
  kHeuristicsMode = 8,
  kNanPropagation = 10,
  kNumericalNote = 11,
  kPointwiseModeType = 14,
  kDescriptor = 15,
  kReductionModeType = 18,
  kReorderingType = 20,
  kResampleModeType = 21,
  kPaddingModeType = 22,
  kInt32 = 23,
  kChar = 24,
  kFraction = 26,
};

// cudnnBackendAttributeName_t
enum Attribute : int {
  kPointwiseMode = 0,
  kPointwiseComputeType = 1,
  kPointwiseAxis = 9,
  kConvolutionComputeType = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPadsAfter = 104,
  kConvolutionPadsBefore = 105,
  kConvolutionSpatialDims = 106,
  kHeuristicsOf = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kHeuristicsDevice = 204,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanDevice = 407,
  kConvolutionAlpha = 700,
  kConvolutionBeta = 701,
  kConvolutionDescriptor = 702,
  kConvolutionW = 703,
  kConvolutionX = 704,
  kConvolutionY = 705,
  kBackwardDataAlpha = 706,
  kBackwardDataBeta = 707,
  kBackwardDataDescriptor = 708,
  kBackwardDataW = 709,
  kBackwardDataDx = 710,
  kBackwardDataDy = 711,
  kPointwiseDescriptor = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseAlpha1 = 754,
  kPointwiseAlpha2 = 755,
  kPointwiseT = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorDataType = 901,
  kTensorDims = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kTensorReordering = 909,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineIndex = 1301,
  kEngineNumericalNotes = 1303,
  kMatmulComputeType = 1500,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulC = 1522,
  kMatmulDescriptor = 1523,
  kMatmulRows = 1525,
  kMatmulColumns = 1526,
  kMatmulDepth = 1527,
  kReductionMode = 1600,
  kReductionComputeType = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kReductionDescriptor = 1612,
  kResampleMode = 1700,
  kResampleComputeType = 1701,
  kResampleSpatialDims = 1702,
  kResamplePadsAfter = 1703,
  kResamplePadsBefore = 1704,
  kResampleStrides = 1705,
  kResampleWindow = 1706,
  kResampleNanPropagation = 1707,
  kResamplePaddingMode = 1708,
  kResampleX = 1710,
  kResampleY = 1711,
  kResampleAlpha = 1713,
  kResampleBeta = 1714,
  kResampleDescriptor = 1716,
  kQuantizeX = 2500,
  kQuantizeY = 2501,
  kQuantizeScale = 2502,
  kQuantizeComputeType = 2503,
  kQuantizeBlock = 2504,
  kDequantizeX = 2600,
  kDequantizeScale = 2601,
  kDequantizeY = 2602,
  kDequantizeComputeType = 2603,
  kDequantizeBlock = 2604,
  kDeviceJson = 2702,
};

// cudnnDataType_t
enum DataType : int {
  kDataFloat = 0,
  kDataHalf = 2,
  kDataInt32 = 4,
  kDataBfloat16 = 9,
  kDataBoolean = 11,
  kDataFp8E4M3 = 12,
  kDataFp8E5M2 = 13,
  kDataFp8E8M0 = 15,
  kDataFp4E2M1 = 16,
};
// cudnnConvolutionMode_t: what ONNX calls a convolution flips no filter.
inline constexpr int kCrossCorrelation = 1;
// cudnnBackendHeurMode_t
enum Heuristics : int { kFallback = 2, kModeA = 3 };
// cudnnPointwiseMode_t
enum PointwiseMode : int {
  kAdd = 0,
  kMultiply = 1,
  kDivide = 6,
  kSubtract = 9,
  kExp = 13,
  kLog = 15,
  kRelu = 100,
  kGreater = 302,
  kGreaterEqual = 303,
  kLess = 304,
  kAnd = 400,
  kIndex = 501,   // along an axis
  kSelect = 601,  // x where t is true, else b
};
// cudnnBackendTensorReordering_t: scales in tiles of 128 rows and 4 blocks.
inline constexpr int kTiles128x4 = 3;
// cudnnReduceTensorOp_t
enum ReductionMode : int { kSum = 0, kLargest = 3 };
// cudnnResampleMode_t
enum ResampleMode : int { kAverageWithPads = 2, kMaximum = 3, kAverageWithoutPads = 4 };
// cudnnPaddingMode_t
enum PaddingMode : int { kZeros = 0, kNegativeInfinity = 1 };
inline constexpr int kPropagateNan = 1;  // cudnnNanPropagation_t
// cudnnBackendNumericalNote_t
enum NumericalNote : int {
  kTensorCore = 0,
  kDownConvertInputs = 1,
  kReducedPrecisionReduction = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
  kWinograd4x4 = 6,
  kWinograd6x6 = 7,
  kWinograd13x13 = 8,
};

}  // namespace tenon::cudnn
