// The fused ops, as typed views of nodes: what matching makes and kernels/ lowers.
//
// A fusion stays an ordinary node (op, inputs, attributes, body), so that it prints and parses like
// any other; `from(node)` gives the typed view and `to_node()` writes it back.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon::ir {

inline constexpr std::string_view kScaledDot = "tenon::ScaledDot";
inline constexpr std::string_view kMergedDots = "tenon::MergedDots";
inline constexpr std::string_view kAttention = "tenon::Attention";
inline constexpr std::string_view kLoop = "tenon::Loop";
inline constexpr std::string_view kDynamicQuantize = "tenon::DynamicQuantize";

// How the elements of one side of a dot are scaled:
//   real(k, n) = (element(k, n) - zero_point) * scale
// Blocks run along K. `scale` has the operand's layout with K divided by `block` (rounded up).
// One scale per channel (block 0) is N elements of any shape, one for all (per_channel false) is
// one. A zero point that hides nibbles in uint8 starts a new byte in each row, as MatMulNBits
// stores it.
struct BlockScale {
  ValueId scale = kNoValue;       // f32, f16, bf16, f8e4m3fn or f8e8m0; kNoValue: unscaled
  ValueId zero_point = kNoValue;  // the operand's type or a float; kNoValue: 0 (see `zero_offset`)
  int64_t block = 0;              // elements of K per scale; 0: one scale for all of K
  bool per_channel = true;        // false: one scale for the whole operand
  int64_t zero_offset = 0;        // constant zero point where none is given (MatMulNBits: 8, 128)
  // The scale is stored as another type's code (uint8 holding e4m3 or e8m0): that type.
  DType scale_type = DType::kUndefined;
  // Two levels: what counts is scale * factor in f32, rounded to this type (kUndefined: no factor).
  // Only of constants, so that packing makes the numbers and no graph holds them.
  DType rounded = DType::kUndefined;
  float factor = 1.0f;
  bool operator==(const BlockScale&) const = default;
};

// y[..., m, n] = epilogue(alpha * sum_k real(a)[..., m, k] * real(b)[..., k, n] + bias[n])
//
//   a ──[(a - zero) * scale_a]──┐
//                               dot ── * alpha ── + bias ── body (pointwise, residual, cast) ── y
//   b ──[(b - zero) * scale_b]──┘
//
// Plain MatMul and Gemm are the same op with no scales. Node inputs, in order:
//   a, b, a.scale, a.zero_point, b.scale, b.zero_point, alpha, bias, then the body's extra
//   operands.
// `alpha` is a scalar f32 value (global scales live here, never in the block scales).
// The body, where present, takes (dot result, extra operands…) and gives the node's outputs.
struct ScaledDot {
  ValueId a = kNoValue, b = kNoValue;
  BlockScale scale_a, scale_b;
  ValueId alpha = kNoValue;     // runtime or constant scalar f32
  float alpha_constant = 1.0f;  // multiplies on top
  ValueId bias = kNoValue;      // [N] or broadcastable to the result; beta already folded in
  bool a_k_first = false;       // a is [..., K, M] (Gemm transA)
  bool b_k_last = false;        // b is [..., N, K] (a transposed weight, Gemm transB)
  // b's element type where the stored tensor hides it (MatMulNBits and contrib FP4 keep nibbles in
  // uint8), and its logical dims [N, K] or [K, N].
  DType b_type = DType::kUndefined;
  std::vector<int64_t> b_dims;
  int accuracy_level = 0;            // MatMulNBits': 4 allows int8 activations
  DType result = DType::kUndefined;  // type of the dot's result before the body
  std::vector<ValueId> extra;        // operands of the body after the dot's own result

  static ScaledDot from(const Node& node);
  void write_to(Node& node) const;  // op, inputs and attributes; body and outputs are the caller's
};

// Several ScaledDots of the same `a`, run as one: q, k and v of an attention, gate and up of an
// MLP.
//
// The body holds the dots and nothing else; output i is what its i-th node gives. Node inputs: what
// the dots read, each once, `a` first. A dot may read the result of one before it as an operand of
// its own body (act(gate) * up). Nobody else reads such a result, and no kernel needs to store it.
//
// A Loop that makes `a`, a norm, may stand before the dots. The same holds for its result; there
// may be one dot only then.
struct MergedDots {
  std::vector<Node> dots;  // in terms of the graph that the node stands in
  std::optional<Node> prologue;

  static MergedDots from(const Node& node);
  // Op, inputs, outputs, sources, name and body; `graph` has the values of the dots.
  void write_to(Node& node, const Graph& graph) const;
};

// y = softmax(mask(softcap(scale * q kᵀ))) v, heads side by side. A mask of floats is added; one of
// bools keeps a score where it is true and puts `mask_fill` in its place where it is false. Where
// the fill is finite a mask of floats may put it too: NaN stands for it.
//
// q, k, v: [B, H, S, D] each, given by strides, so that the transposes and reshapes around an
// attention dissolve: `*_layout` is "bhsd", "bshd" or, for k, "bhds" (already transposed); "bs(hd)"
// means that heads are packed in the last dim of a 3-D tensor; head_layout.h has one more.
// Node inputs: q, k, v, mask, past_k, past_v, kv_lengths, sinks, cos, sin, positions, q_norm,
// k_norm, k_scale, v_scale.
// Node outputs: y, present_k, present_v (kNoValue where not asked for; only with a past).
//
// Which keys a query sees, for batch row b, with S keys in k and P in past_k (0 without):
//   length(b) = kv_lengths[b], else P + S           keys that count
//   past(b)   = P, or with kv_lengths and a past: max(0, kv_lengths[b] - S)
// The keys are past's first past(b) rows, then k's at row past(b); present holds them, [B, H, rows,
// D], and zeros after them (what was there before, where present is past's own buffer). Without
// kv_lengths that is Concat(past, k). Query i stands at
//   position(b, i) = i + past(b), or where `causal` is set i + length(b) - Sq
// and sees key j when j < length(b), j <= position (causal, causal_top_left),
// position - j <= left_window and j - position <= right_window. A query that sees none of the keys
// gives 0, or NaN as a softmax does where `nan_without_keys` is set.
//
// Before all this, heads of q and of the new keys (not those of past) are brought to their places:
//   x ── [x * norm / sqrt(mean(x²) + norm_epsilon)] ── [rotary] ── rounded to x's type
// Rotary turns pairs of the first 2 * W elements of a head by the angle of row r of cos and sin:
//   (x1, x2) -> (x1 cos - x2 sin, x1 sin + x2 cos)
// Pairs are elements (i, i + W), or (2i, 2i + 1) where `interleaved`. Query and key i of batch row
// b take row r = positions[b, i], else past(b) + i; rows come by (b, i) where cos has three dims.
//
// Caches may hold codes of `cache_type` (i8, f8e4m3fn or i4) instead of numbers: past and present
// are then codes, and every key, also a new one, counts as what its code says:
//   code = clamp(round_half_even(x / scale)), x = code * scale
// with one scale for all, or one for each element of each head. Codes of i4 are stored as code + 8,
// two in a byte of u8, the first in the low bits; rows have D / 2 bytes then.
struct Attention {
  ValueId q = kNoValue, k = kNoValue, v = kNoValue;
  ValueId mask = kNoValue;  // bool (keep where true) or float (added), broadcast to [B,H,Sq,Sk]
  // -inf hides the key; with a finite number it still counts, so that rows without a kept key weigh
  // all of them alike.
  float mask_fill = -std::numeric_limits<float>::infinity();
  ValueId past_k = kNoValue, past_v = kNoValue;
  ValueId kv_lengths = kNoValue;                 // i32/i64 [B]: valid keys of each batch row
  ValueId sinks = kNoValue;                      // [H]: one extra logit per head in the denominator
  ValueId cos = kNoValue, sin = kNoValue;        // [rows, W] or [B or 1, S, W]; both or none
  ValueId positions = kNoValue;                  // i32/i64 [B or 1, S]
  ValueId q_norm = kNoValue, k_norm = kNoValue;  // [D]
  ValueId k_scale = kNoValue, v_scale = kNoValue;  // f32: 1 or H * D elements in any shape
  DType cache_type = DType::kUndefined;            // of codes; kUndefined: caches hold numbers
  int64_t q_heads = 0, kv_heads = 0;
  std::string q_layout = "bhsd", k_layout = "bhsd", v_layout = "bhsd", y_layout = "bhsd";
  float scale = 0.0f;    // 0: 1/sqrt(D)
  float softcap = 0.0f;  // 0: none
  // > 0: probabilities p, divided by their sum, are rounded before v: code(p / this) * this, with
  // codes of probability_codes (f8e4m3fn, u8 or i8), where p / this has probability_type first.
  float probability_scale = 0.0f;
  DType probability_codes = DType::kF8E4M3FN, probability_type = DType::kF32;
  bool causal = false;           // bottom-right aligned: the last query sees the last key
  bool causal_top_left = false;  // query i sees the past and k's first i + 1 keys
  int64_t left_window = -1, right_window = -1;  // -1: unlimited
  bool nan_without_keys = false;
  bool interleaved = false;
  float norm_epsilon = 1e-6f;
  // A Run fails where one of kv_lengths is below this or above all keys; -1: it is cut instead.
  int64_t least_length = -1;

  bool has_rotary() const { return cos != kNoValue; }
  bool rounds_probabilities() const { return probability_scale > 0.0f; }
  bool has_codes() const { return cache_type != DType::kUndefined; }
  bool has_norm() const { return q_norm != kNoValue || k_norm != kNoValue; }

  static Attention from(const Node& node);
  void write_to(Node& node) const;
};

// A pointwise / reduction / data-movement region: one kernel, no intermediate in memory.
//
// The body holds primitive ops only (graph_partitioner/ir/primitives.h lists them). One iteration
// domain covers the region: every value in the body is the domain with some axes of size 1
// (broadcast or reduced, keepdims), up to the movement ops (Transpose, Slice, Expand, Gather, …)
// that stand between an input and its first use.
bool is_loop(const Node& node);

}  // namespace tenon::ir
