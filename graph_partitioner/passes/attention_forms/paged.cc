// com.microsoft::PagedAttention: tokens of several sequences behind each other, keys in pages.
//
//   q, k, v ──[RMS norm of heads]──[rotary at past + i]── tenon::PagedAttention
//
// The operator tells where sequences begin; here that becomes a sequence and a place for each
// token. Caches that are no outputs, 4-bit and latent ones, and queries that see later tokens
// stay.
#include "graph_partitioner/ir/paged_attention.h"

#include <fmt/format.h>

#include "base/support.h"
#include "graph_partitioner/passes/attention_forms/forms.h"
#include "graph_partitioner/passes/attention_forms/rotary.h"

namespace tenon::attention_forms {
namespace {

using ir::kNoValue;
using ir::ValueId;

enum Input {
  kQ,
  kK,
  kV,
  kKeyCache,
  kValueCache,
  kStarts,
  kPast,
  kTable,
  kCos,
  kSin,
  kSlots,
  kSinks,
  kNormQ,
  kNormK,
  kScaleK,
  kScaleV,
};

struct Form {
  int64_t q_heads = 0, kv_heads = 0, head_size = 0;
  Dim tokens, sequences;
};

// As attributes of caches name element types; empty for others.
std::string_view onnx_name(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kI8:
      return "int8";
    case DType::kF8E4M3FN:
      return "float8e4m3fn";
    default:
      return "";
  }
}

Support is_ours(Rewrite& r) {
  const ir::Node& node = r.node();
  if (node.text("kv_cache_layout", "SEPARATE") != "SEPARATE") {
    return Support::no("kv_cache_layout is not SEPARATE: latent (MLA) caches are not supported");
  }
  const int64_t window = node.integer("local_window_size", -1);
  if (window != -1 && window <= 0) {
    return Support::no(fmt::format("local_window_size is {}, not -1 or positive", window));
  }
  for (const auto& [cache, attribute] :
       {std::pair{kKeyCache, "k_cache_dtype"}, {kValueCache, "v_cache_dtype"}}) {
    const std::string stated = node.text(attribute, "");
    if (!stated.empty() && stated != onnx_name(r.dtype(r.input(cache)))) {
      return Support::no(fmt::format("{}={} does not match the cache's type", attribute, stated));
    }
  }
  if (node.integer("is_causal", 1) == 0) return Support::no("is_causal=0 is not supported");
  if (node.integer("rotary_offset", 0) != 0) return Support::no("rotary_offset is not supported");
  if (!r.is_used(1) || !r.is_used(2)) {
    return Support::no("the updated KV caches are not outputs");
  }
  if (r.has_input(kK) != r.has_input(kV) || r.has_input(kNormQ) != r.has_input(kNormK)) {
    return Support::no("key without value, or a QK norm of only one of q and k");
  }
  return Support::yes();
}

Support read_form(Rewrite& r, Form& form) {
  if (Support answer = is_ours(r); !answer) return answer;
  const auto q = r.shape(r.input(kQ)), cache = r.shape(r.input(kKeyCache)),
             values = r.shape(r.input(kValueCache)), table = r.shape(r.input(kTable)),
             starts = r.shape(r.input(kStarts));
  if (!q || !cache || !values || !table || !starts || q->size() != 2 || cache->size() != 4 ||
      *cache != *values || table->size() != 2 || starts->size() != 1) {
    return Support::no("operand ranks or head sizes are not static");
  }
  form.q_heads = r.node().integer("num_heads", 0);
  form.kv_heads = r.node().integer("kv_num_heads", 0);
  if (form.q_heads <= 0 || form.kv_heads <= 0 || form.q_heads % form.kv_heads != 0) {
    return Support::no(fmt::format("{} query heads are not a multiple of {} KV heads", form.q_heads,
                                   form.kv_heads));
  }
  const Dim& width = (*cache)[3];
  const int64_t heads = r.has_input(kK) ? form.q_heads : form.q_heads + 2 * form.kv_heads;
  if (!width.is_constant() || !(*cache)[2].is(form.kv_heads) ||
      !q->back().is(heads * width.value())) {
    return Support::no(
        fmt::format("hidden size {} is not {} heads of {}", q->back().text(), heads, width.text()));
  }
  for (const Input input : {kK, kV}) {
    const auto shape = r.has_input(input) ? r.shape(r.input(input)) : Shape{};
    if (r.has_input(input) && (!shape || *shape != Shape{(*q)[0], form.kv_heads * width.value()})) {
      return Support::no("key or value shape does not match the query's tokens");
    }
  }
  form.head_size = width.value();
  form.tokens = (*q)[0];
  form.sequences = (*table)[0];
  return Support::yes();
}

Support read_scale(Rewrite& r, const Form& form, Input scale, const char* kind_name) {
  const std::string kind = r.node().text(kind_name, "NONE");
  const int64_t wanted = kind == "PER_CHANNEL" ? form.kv_heads * form.head_size : 1;
  const auto shape = r.has_input(scale) ? r.shape(r.input(scale)) : std::nullopt;
  if ((kind != "PER_CHANNEL" && kind != "PER_TENSOR") || !shape ||
      !element_count(*shape).is(wanted)) {
    return Support::no(
        fmt::format("{}={} needs a float32 scale of {} element(s)", kind_name, kind, wanted));
  }
  return Support::yes();
}

// Numbers of q's own type, or codes of 8 bits.
Support read_codes(Rewrite& r, const Form& form, ir::PagedAttention& attention) {
  const DType stored = r.dtype(r.input(kKeyCache));
  if (r.dtype(r.input(kValueCache)) != stored)
    return Support::no("key and value caches have different types");
  if (stored == r.dtype(r.input(kQ))) {
    const bool quantised = r.node().text("k_quant_type", "NONE") != "NONE" ||
                           r.node().text("v_quant_type", "NONE") != "NONE";
    return quantised ? Support::no(
                           "k_quant_type or v_quant_type is set, but the KV cache is not quantised")
                     : Support::yes();
  }
  if (stored != DType::kI8 && stored != DType::kF8E4M3FN) {
    return Support::no(fmt::format("a paged KV cache of {} is not supported", name(stored)));
  }
  if (Support answer = read_scale(r, form, kScaleK, "k_quant_type"); !answer) return answer;
  if (Support answer = read_scale(r, form, kScaleV, "v_quant_type"); !answer) return answer;
  attention.k_scale = r.input(kScaleK);
  attention.v_scale = r.input(kScaleV);
  return Support::yes();
}

// The sequence of each token, and its place there: [T].
void find_places(Rewrite& r, const Form& form, ir::PagedAttention& attention) {
  auto& e = r.emit;
  const auto wide = [&](Input input) { return e.cast(r.input(input), DType::kI64); };
  const ValueId starts = wide(kStarts), token = e.position({form.tokens}, 0);
  const ValueId ends = slice_axis(r, starts, 0, 1, form.sequences);
  const ValueId passed = e.compare("GreaterOrEqual", e.reshape(token, {form.tokens, 1}),
                                   e.reshape(ends, {1, form.sequences}));
  const ValueId count = e.reduce("ReduceSum", e.cast(passed, DType::kI64), {1});
  const ValueId last = e.dim_value(form.sequences - 1, DType::kI64);
  attention.rows = e.binary("Min", e.reshape(count, {form.tokens}), last);
  const ValueId before = e.gather(wide(kPast), attention.rows, 0);
  const ValueId begin = e.gather(starts, attention.rows, 0);
  attention.positions = e.binary("Add", before, e.binary("Sub", token, begin));
}

Support rotate_heads(Rewrite& r, const Form& form, ir::PagedAttention& attention) {
  if (r.node().integer("do_rotary", 0) == 0) return Support::yes();
  const auto cos = r.shape(r.input(kCos)), sin = r.shape(r.input(kSin));
  if (!cos || !sin || cos->size() != 2 || *cos != *sin || !(*cos)[1].is_constant() ||
      2 * (*cos)[1].value() > form.head_size) {
    return Support::no("cos_cache and sin_cache do not match head_size");
  }
  const ValueId places = r.emit.reshape(attention.positions, {1, form.tokens});
  const Rotation rotation =
      rotation_at(r, r.input(kCos), r.input(kSin), places, 2 * (*cos)[1].value(),
                  r.node().integer("rotary_interleaved", 0) != 0);
  const auto turned = [&](ValueId x, int64_t heads) {
    const ValueId rows = r.emit.reshape(x, {1, form.tokens, heads, form.head_size});
    return r.emit.reshape(rotate(r, rows, rotation, false), {form.tokens, heads, form.head_size});
  };
  attention.q = turned(attention.q, form.q_heads);
  attention.k = turned(attention.k, form.kv_heads);
  return Support::yes();
}

void read_heads(Rewrite& r, const Form& form, ir::PagedAttention& attention) {
  const auto heads = [&](Input input, int64_t count) {
    return r.emit.reshape(r.input(input), {form.tokens, count, form.head_size});
  };
  if (r.has_input(kK)) {
    attention.q = heads(kQ, form.q_heads);
    attention.k = heads(kK, form.kv_heads);
    attention.v = heads(kV, form.kv_heads);
  } else {
    const ValueId all = heads(kQ, form.q_heads + 2 * form.kv_heads);
    attention.q = slice_axis(r, all, 1, 0, form.q_heads);
    attention.k = slice_axis(r, all, 1, form.q_heads, form.kv_heads);
    attention.v = slice_axis(r, all, 1, form.q_heads + form.kv_heads, form.kv_heads);
  }
  const float epsilon = r.node().number("qk_norm_epsilon", 1e-6f);
  attention.q = normed_heads(r, attention.q, r.input(kNormQ), epsilon);
  attention.k = normed_heads(r, attention.k, r.input(kNormK), epsilon);
}

bool paged_attention(Rewrite& r) {
  Form form;
  if (const Support answer = read_form(r, form); !answer) return r.refuse(answer.reason);
  const int64_t window = r.node().integer("local_window_size", -1);
  ir::PagedAttention attention;
  attention.key_cache = r.input(kKeyCache);
  attention.value_cache = r.input(kValueCache);
  attention.table = r.input(kTable);
  attention.slots = r.input(kSlots);
  attention.sinks = r.input(kSinks);
  attention.scale = r.node().number("scale", 0.0f);
  attention.softcap = r.node().number("softcap", 0.0f);
  attention.left_window = window > 0 ? window - 1 : -1;  // the query's own key is one of them
  if (const Support answer = read_codes(r, form, attention); !answer) {
    return r.refuse(answer.reason);
  }
  find_places(r, form, attention);
  read_heads(r, form, attention);
  if (const Support answer = rotate_heads(r, form, attention); !answer) {
    return r.refuse(answer.reason);
  }
  for (const size_t output : {1, 2})
    r.set_shape(output, *r.graph().value(r.input(kKeyCache)).shape);
  r.set_shape(0, {form.tokens, form.q_heads * form.head_size});
  attention.write_to(r.graph().node(r.id()));
  return true;
}

constexpr NamedRewrite kRules[] = {{"com.microsoft::PagedAttention", paged_attention}};

}  // namespace

std::span<const NamedRewrite> paged_forms() { return kRules; }

}  // namespace tenon::attention_forms
