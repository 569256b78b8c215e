// Older opsets: attributes that became inputs, ops that changed their name.
#include "graph_partitioner/passes/normalize/rules.h"

namespace tenon::normalization {
namespace {

using ir::kNoValue;
using ir::ValueId;

ValueId integers(Rewrite& r, const std::vector<int64_t>& values) {
  // Not through double, which has no room for INT64_MAX: "to the end" in slices.
  return r.graph().add_constant("integers",
                                ir::Tensor::copy(DType::kI64, {static_cast<int64_t>(values.size())},
                                                 std::as_bytes(std::span(values))));
}

ValueId number(Rewrite& r, std::string_view attribute) {
  if (!r.node().has(attribute)) return kNoValue;
  return r.emit.scalar(r.dtype(r.input(0)), r.node().number(attribute, 0.0f));
}

// Clip-6 has min and max as attributes.
bool clip(Rewrite& r) {
  if (!r.node().has("min") && !r.node().has("max")) {
    return !r.has_input(1) && !r.has_input(2) && identity(r);
  }
  r.become("Clip", {r.input(0), number(r, "min"), number(r, "max")});
  return true;
}

// Pad-2 has pads and value as attributes.
bool pad(Rewrite& r) {
  if (!r.node().has("pads")) return false;
  const ValueId pads = integers(r, r.node().integers("pads"));
  const ValueId value = number(r, "value");
  r.become("Pad", {r.input(0), pads, value}, {{"mode", r.node().text("mode", "constant")}});
  return true;
}

// Slice-1 has starts, ends and axes as attributes.
bool slice(Rewrite& r) {
  if (!r.node().has("starts")) return false;
  const std::vector<int64_t> axes = r.node().integers("axes");
  std::vector<ValueId> inputs = {r.input(0), integers(r, r.node().integers("starts")),
                                 integers(r, r.node().integers("ends"))};
  if (!axes.empty()) inputs.push_back(integers(r, axes));
  r.become("Slice", std::move(inputs));
  return true;
}

bool scatter(Rewrite& r) {
  r.become("ScatterElements", r.node().inputs, r.node().attributes);
  return true;
}

constexpr NamedRewrite kRules[] = {
    {"Clip", clip},
    {"Pad", pad},
    {"Slice", slice},
    {"Scatter", scatter},
};

}  // namespace

std::span<const NamedRewrite> opset_rules() { return kRules; }

}  // namespace tenon::normalization
