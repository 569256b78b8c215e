#include "graph_partitioner/ir/known_ops.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace tenon::ir {
namespace {

constexpr size_t kAny = std::numeric_limits<size_t>::max();

constexpr auto kOps = std::to_array<KnownOp>({
    {"Abs", 1, 1, ""},
    {"Acos", 1, 1, ""},
    {"Acosh", 1, 1, ""},
    {"Add", 2, 1, ""},
    {"AffineGrid", 2, 1, "align_corners"},
    {"And", 2, 1, ""},
    {"ArgMax", 1, 1, "axis keepdims select_last_index"},
    {"ArgMin", 1, 1, "axis keepdims select_last_index"},
    {"Asin", 1, 1, ""},
    {"Asinh", 1, 1, ""},
    {"Atan", 1, 1, ""},
    {"Atanh", 1, 1, ""},
    {"Attention", 7, 4,
     "is_causal kv_num_heads left_window_size q_num_heads qk_matmul_output_mode right_window_size "
     "scale softcap softmax_precision=1|10|16"},
    {"AveragePool", 1, 1,
     "auto_pad ceil_mode count_include_pad dilations kernel_shape pads strides"},
    {"BatchNormalization", 5, 5, "epsilon is_test=1 momentum spatial=1 training_mode"},
    {"Bernoulli", 1, 1, "dtype seed"},
    {"BitShift", 2, 1, "direction"},
    {"BitwiseAnd", 2, 1, ""},
    {"BitwiseNot", 1, 1, ""},
    {"BitwiseOr", 2, 1, ""},
    {"BitwiseXor", 2, 1, ""},
    {"BlackmanWindow", 1, 1, "output_datatype periodic"},
    {"Cast", 1, 1, "round_mode saturate to"},
    {"CastLike", 2, 1, "round_mode saturate"},
    {"Ceil", 1, 1, ""},
    {"Celu", 1, 1, "alpha"},
    {"CenterCropPad", 2, 1, "axes"},
    {"Clip", 3, 1, "max min"},
    {"Col2Im", 3, 1, "dilations pads strides"},
    {"Concat", kAny, 1, "axis"},
    {"Constant", 0, 1, "value value_float value_floats value_int value_ints"},
    {"ConstantOfShape", 1, 1, "value"},
    {"Conv", 3, 1, "auto_pad dilations group kernel_shape pads strides"},
    {"ConvInteger", 4, 1, "auto_pad dilations group kernel_shape pads strides"},
    {"ConvTranspose", 3, 1,
     "auto_pad dilations group kernel_shape output_padding output_shape pads strides"},
    {"Cos", 1, 1, ""},
    {"Cosh", 1, 1, ""},
    {"CumSum", 2, 1, "exclusive reverse"},
    {"DeformConv", 5, 1, "dilations group kernel_shape offset_group pads strides"},
    {"DepthToSpace", 1, 1, "blocksize mode"},
    {"DequantizeLinear", 3, 1, "axis block_size output_dtype"},
    {"Det", 1, 1, ""},
    {"Div", 2, 1, ""},
    {"Dropout", 3, 2, "is_test=1 ratio seed"},
    {"DynamicQuantizeLinear", 1, 3, ""},
    {"Einsum", kAny, 1, "equation"},
    {"Elu", 1, 1, "alpha"},
    {"Equal", 2, 1, ""},
    {"Erf", 1, 1, ""},
    {"Exp", 1, 1, ""},
    {"Expand", 2, 1, ""},
    {"EyeLike", 1, 1, "dtype k"},
    {"Flatten", 1, 1, "axis"},
    {"Floor", 1, 1, ""},
    {"GRU", 6, 2,
     "activation_alpha activation_beta activations clip direction hidden_size layout "
     "linear_before_reset output_sequence"},
    {"Gather", 2, 1, "axis"},
    {"GatherElements", 2, 1, "axis"},
    {"GatherND", 2, 1, "batch_dims"},
    {"Gelu", 1, 1, "approximate"},
    {"Gemm", 3, 1, "alpha beta transA transB"},
    {"GlobalAveragePool", 1, 1, ""},
    {"GlobalLpPool", 1, 1, "p"},
    {"GlobalMaxPool", 1, 1, ""},
    {"Greater", 2, 1, ""},
    {"GreaterOrEqual", 2, 1, ""},
    {"GridSample", 2, 1, "align_corners mode padding_mode"},
    {"GroupNormalization", 3, 1, "epsilon num_groups stash_type"},
    {"HammingWindow", 1, 1, "output_datatype periodic"},
    {"HannWindow", 1, 1, "output_datatype periodic"},
    {"HardSigmoid", 1, 1, "alpha beta"},
    {"HardSwish", 1, 1, ""},
    {"Hardmax", 1, 1, "axis"},
    {"Identity", 1, 1, ""},
    {"InstanceNormalization", 3, 1, "epsilon"},
    {"IsInf", 1, 1, "detect_negative detect_positive"},
    {"IsNaN", 1, 1, ""},
    {"LRN", 1, 1, "alpha beta bias size"},
    {"LSTM", 8, 3,
     "activation_alpha activation_beta activations clip direction hidden_size input_forget layout "
     "output_sequence"},
    {"LayerNormalization", 3, 3, "axis epsilon stash_type"},
    {"LeakyRelu", 1, 1, "alpha"},
    {"Less", 2, 1, ""},
    {"LessOrEqual", 2, 1, ""},
    {"Log", 1, 1, ""},
    {"LogSoftmax", 1, 1, "axis"},
    {"LpNormalization", 1, 1, "axis p"},
    {"LpPool", 1, 1, "auto_pad ceil_mode dilations kernel_shape p pads strides"},
    {"MatMul", 2, 1, ""},
    {"MatMulInteger", 4, 1, ""},
    {"Max", kAny, 1, ""},
    {"MaxPool", 1, 2, "auto_pad ceil_mode dilations kernel_shape pads storage_order strides"},
    {"MaxRoiPool", 2, 1, "pooled_shape spatial_scale"},
    {"MaxUnpool", 3, 1, "kernel_shape pads strides"},
    {"Mean", kAny, 1, ""},
    {"MeanVarianceNormalization", 1, 1, "axes"},
    {"MelWeightMatrix", 5, 1, "output_datatype"},
    {"Min", kAny, 1, ""},
    {"Mish", 1, 1, ""},
    {"Mod", 2, 1, "fmod"},
    {"Mul", 2, 1, ""},
    {"Multinomial", 1, 1, "dtype sample_size seed"},
    {"Neg", 1, 1, ""},
    {"NegativeLogLikelihoodLoss", 3, 1, "ignore_index reduction"},
    {"Not", 1, 1, ""},
    {"OneHot", 3, 1, "axis"},
    {"Or", 2, 1, ""},
    {"PRelu", 2, 1, ""},
    {"Pad", 4, 1, "mode pads value"},
    {"Pow", 2, 1, ""},
    {"QLinearConv", 9, 1, "auto_pad dilations group kernel_shape pads strides"},
    {"QLinearMatMul", 8, 1, ""},
    {"QuantizeLinear", 3, 1, "axis block_size output_dtype precision saturate"},
    {"RMSNormalization", 2, 1, "axis epsilon stash_type"},
    {"RNN", 6, 2,
     "activation_alpha activation_beta activations clip direction hidden_size layout "
     "output_sequence"},
    {"RandomNormal", 0, 1, "dtype mean scale seed shape"},
    {"RandomNormalLike", 1, 1, "dtype mean scale seed"},
    {"RandomUniform", 0, 1, "dtype high low seed shape"},
    {"RandomUniformLike", 1, 1, "dtype high low seed"},
    {"Range", 3, 1, "stash_type=1"},
    {"Reciprocal", 1, 1, ""},
    {"ReduceL1", 2, 1, "axes keepdims noop_with_empty_axes"},
    {"ReduceL2", 2, 1, "axes keepdims noop_with_empty_axes"},
    {"ReduceLogSum", 2, 1, "axes keepdims noop_with_empty_axes"},
    {"ReduceLogSumExp", 2, 1, "axes keepdims noop_with_empty_axes"},
    {"ReduceMax", 2, 1, "axes keepdims noop_with_empty_axes"},
    {"ReduceMean", 2, 1, "axes keepdims noop_with_empty_axes"},
    {"ReduceMin", 2, 1, "axes keepdims noop_with_empty_axes"},
    {"ReduceProd", 2, 1, "axes keepdims noop_with_empty_axes"},
    {"ReduceSum", 2, 1, "axes keepdims noop_with_empty_axes"},
    {"ReduceSumSquare", 2, 1, "axes keepdims noop_with_empty_axes"},
    {"Relu", 1, 1, ""},
    {"Reshape", 2, 1, "allowzero shape"},
    {"Resize", 4, 1,
     "antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside "
     "extrapolation_value keep_aspect_ratio_policy mode nearest_mode"},
    {"ReverseSequence", 2, 1, "batch_axis time_axis"},
    {"RoiAlign", 3, 1,
     "coordinate_transformation_mode mode output_height output_width sampling_ratio "
     "spatial_scale"},
    {"RotaryEmbedding", 4, 1, "interleaved num_heads rotary_embedding_dim"},
    {"Round", 1, 1, ""},
    {"Scatter", 3, 1, "axis"},
    {"ScatterElements", 3, 1, "axis reduction"},
    {"ScatterND", 3, 1, "reduction"},
    {"Selu", 1, 1, "alpha gamma"},
    {"Shape", 1, 1, "end start"},
    {"Shrink", 1, 1, "bias lambd"},
    {"Sigmoid", 1, 1, ""},
    {"Sign", 1, 1, ""},
    {"SimplifiedLayerNormalization", 2, 2, "axis epsilon stash_type"},
    {"Sin", 1, 1, ""},
    {"Sinh", 1, 1, ""},
    {"Size", 1, 1, ""},
    {"Slice", 5, 1, "axes ends starts"},
    {"Softmax", 1, 1, "axis"},
    {"SoftmaxCrossEntropyLoss", 3, 2, "ignore_index reduction"},
    {"Softplus", 1, 1, ""},
    {"Softsign", 1, 1, ""},
    {"SpaceToDepth", 1, 1, "blocksize mode=DCR"},
    {"Split", 2, kAny, "axis num_outputs split"},
    {"Sqrt", 1, 1, ""},
    {"Squeeze", 2, 1, "axes"},
    {"Sub", 2, 1, ""},
    {"Sum", kAny, 1, ""},
    {"Swish", 1, 1, "alpha"},
    {"Tan", 1, 1, ""},
    {"Tanh", 1, 1, ""},
    {"TensorScatter", 3, 1, "axis mode"},
    {"ThresholdedRelu", 1, 1, "alpha"},
    {"Tile", 2, 1, ""},
    {"TopK", 2, 2, "axis k largest sorted"},
    {"Transpose", 1, 1, "perm"},
    {"Trilu", 2, 1, "upper"},
    {"Unsqueeze", 2, 1, "axes"},
    {"Upsample", 2, 1, "mode scales"},
    {"Where", 3, 1, ""},
    {"Xor", 2, 1, ""},
    {"com.microsoft::Attention", 7, 2,
     "do_rotary mask_filter_value num_heads past_present_share_buffer qkv_hidden_sizes "
     "rotary_embedding_dim scale unidirectional"},
    {"com.microsoft::BiasAdd", 3, 1, ""},
    {"com.microsoft::BiasGelu", 2, 1, ""},
    {"com.microsoft::BiasSplitGelu", 2, 1, ""},
    {"com.microsoft::ComplexMul", 2, 1, ""},
    {"com.microsoft::DequantizeLinear", 3, 1, "axis"},
    {"com.microsoft::DynamicQuantizeMatMul", 5, 1, ""},
    {"com.microsoft::EmbedLayerNormalization", 9, 3, "epsilon mask_index_type"},
    {"com.microsoft::FastGelu", 2, 1, ""},
    {"com.microsoft::FusedConv", 4, 1,
     "activation activation_params auto_pad dilations group kernel_shape pads strides"},
    {"com.microsoft::FusedGemm", 3, 1,
     "activation activation_alpha activation_beta activation_gamma alpha beta transA transB"},
    {"com.microsoft::FusedMatMul", 2, 1, "alpha transA transB transBatchA transBatchB"},
    {"com.microsoft::GatherBlockQuantized", 4, 1, "bits block_size gather_axis quantize_axis"},
    {"com.microsoft::Gelu", 1, 1, ""},
    {"com.microsoft::GridSample", 2, 1, "align_corners mode padding_mode"},
    {"com.microsoft::GroupNorm", 3, 1, "activation channels_last epsilon groups"},
    {"com.microsoft::GroupQueryAttention", 16, 4,
     "causal do_rotary k_quant_type kv_cache_bit_width kv_num_heads local_window_size num_heads "
     "qk_norm_epsilon qk_output rotary_interleaved scale sliding_window_cache smooth_softmax "
     "softcap v_quant_type"},
    {"com.microsoft::Inverse", 1, 1, ""},
    {"com.microsoft::MatMulBlockQuantizedFp4Weight", 6, 1, "block_size"},
    {"com.microsoft::MatMulBlockQuantizedFp8Weight", 5, 1, "block_size"},
    {"com.microsoft::MatMulBnb4", 3, 1, "K N block_size quant_type training_mode transB"},
    {"com.microsoft::MatMulIntegerToFloat", 7, 1, ""},
    {"com.microsoft::MatMulNBits", 6, 1, "K N accuracy_level bits block_size weight_prepacked"},
    {"com.microsoft::MoE", 8, 1,
     "activation_alpha activation_beta activation_type k normalize_routing_weights "
     "swiglu_fusion swiglu_limit use_sparse_mixer"},
    {"com.microsoft::MultiHeadAttention", 10, 4,
     "mask_filter_value num_heads scale unidirectional"},
    {"com.microsoft::AllGather", 1, 1, "axis group_size"},
    {"com.microsoft::AllReduce", 1, 1, ""},
    {"com.microsoft::AllToAll", 1, 1, "group_size"},
    {"com.microsoft::PagedAttention", 17, 3,
     "do_rotary is_causal k_cache_dtype k_quant_type kv_cache_layout kv_num_heads "
     "local_window_size num_heads qk_norm_epsilon rotary_interleaved rotary_offset scale softcap "
     "v_cache_dtype v_head_size=0 v_quant_type"},
    {"com.microsoft::QLinearAdd", 8, 1, ""},
    {"com.microsoft::QLinearConcat", kAny, 1, "axis"},
    {"com.microsoft::QLinearGlobalAveragePool", 5, 1, "channels_last"},
    {"com.microsoft::QLinearLeakyRelu", 5, 1, "alpha"},
    {"com.microsoft::QLinearMul", 8, 1, ""},
    {"com.microsoft::QLinearSigmoid", 5, 1, ""},
    {"com.microsoft::QLinearSoftmax", 5, 1, "axis opset"},
    {"com.microsoft::QLinearWhere", 9, 1, ""},
    {"com.microsoft::QMoE", 21, 1,
     "accuracy_level activation_alpha activation_beta activation_type block_size "
     "expert_weight_bits fc1_expert_weight_bits fc2_expert_weight_bits fc3_expert_weight_bits k "
     "normalize_routing_weights quant_type swiglu_fusion swiglu_limit use_sparse_mixer "
     "weights_prepacked"},
    {"com.microsoft::QuantizeLinear", 3, 1, "axis"},
    {"com.microsoft::QuickGelu", 1, 1, "alpha"},
    {"com.microsoft::RotaryEmbedding", 4, 1,
     "interleaved is_packed_batching num_heads rotary_embedding_dim scale"},
    {"com.microsoft::SimplifiedLayerNormalization", 2, 2, "axis epsilon stash_type"},
    {"com.microsoft::SkipGroupNorm", 5, 2, "activation channels_last epsilon groups"},
    {"com.microsoft::SkipLayerNormalization", 5, 4, "epsilon"},
    {"com.microsoft::SkipSimplifiedLayerNormalization", 4, 4, "epsilon"},
    {"com.microsoft::TransposeMatMul", 2, 1, "alpha transA transB"},
    {"trt::DequantizeLinear", 3, 1, "axis block_size output_dtype=1|10|16"},
    {"trt::QuantizeLinear", 3, 1, "axis block_size output_dtype=2|3|17|21|22 precision saturate"},
    {"trt::TRT_FP8DequantizeLinear", 3, 1, "axis block_size output_dtype=1|10|16"},
    {"trt::TRT_FP8QuantizeLinear", 3, 1, "axis block_size precision saturate"},
    {"trt::TRT_INT4DequantizeLinear", 3, 1, "axis block_size output_dtype=1|10|16"},
    {"trt::TRT_INT4QuantizeLinear", 3, 1, "axis block_size precision saturate"},
    {"trt::TRT_INT8DequantizeLinear", 3, 1, "axis block_size output_dtype=1|10|16"},
    {"trt::TRT_INT8QuantizeLinear", 3, 1, "axis block_size precision saturate"},
    {"trt::TRT_MXFP8DequantizeLinear", 2, 1, "axis block_size output_dtype=1|10|16"},
    {"trt::TRT_FP4DynamicQuantize", 2, 2, "axis block_size scale_type=17"},
    {"trt::TRT_FP4QDQ", 1, 1, "block_size"},
    {"trt::TRT_MXFP8DynamicQuantize", 1, 2, "axis block_size output_dtype=17 scale_type=24"},
});

using Words = std::vector<std::string_view>;

Words split(std::string_view text, char separator) {
  Words words;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// By op, then by attribute: the values that are known, none where all are.
using Attributes = std::map<std::string_view, Words>;
struct Entry {
  const KnownOp* op;
  Attributes attributes;
};

const std::map<std::string_view, Entry>& entries() {
  static const auto* const table = [] {
    auto* all = new std::map<std::string_view, Entry>;
    for (const KnownOp& op : kOps) {
      Entry& entry = (*all)[op.op];
      entry.op = &op;
      for (const std::string_view word : split(op.attributes, ' ')) {
        const size_t equals = word.find('=');
        entry.attributes[word.substr(0, equals)] =
            equals == word.npos ? Words{} : split(word.substr(equals + 1), '|');
      }
    }
    return all;
  }();
  return *table;
}

std::string value_text(const Attribute& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<float>(&value)) return fmt::format("{}", *number);
  return "a list or a tensor";
}

size_t count(const std::vector<ValueId>& values) {
  size_t most = values.size();
  while (most > 0 && values[most - 1] == kNoValue) --most;
  return most;
}

}  // namespace

std::span<const KnownOp> known_ops() { return kOps; }

Support is_known(const Node& node) {
  const auto found = entries().find(node.op);
  if (found == entries().end()) return Support::yes();
  const Entry& entry = found->second;
  for (const auto& [name, value] : node.attributes) {
    const auto known = entry.attributes.find(name);
    if (known == entry.attributes.end()) {
      return Support::no(fmt::format("attribute '{}' of {} is not known", name, node.op));
    }
    const std::string text = value_text(value);
    if (!known->second.empty() && std::ranges::find(known->second, text) == known->second.end()) {
      return Support::no(fmt::format("attribute '{}' of {} is {}", name, node.op, text));
    }
  }
  if (count(node.inputs) > entry.op->inputs) {
    return Support::no(fmt::format("input {} of {} is not known", entry.op->inputs, node.op));
  }
  if (count(node.outputs) > entry.op->outputs) {
    return Support::no(fmt::format("output {} of {} is not known", entry.op->outputs, node.op));
  }
  return Support::yes();
}

}  // namespace tenon::ir
