#include "graph_partitioner/ir/paged_attention.h"

namespace tenon::ir {

PagedAttention PagedAttention::from(const Node& node) {
  PagedAttention attention;
  ValueId* const inputs[] = {&attention.q,         &attention.k,           &attention.v,
                             &attention.key_cache, &attention.value_cache, &attention.rows,
                             &attention.positions, &attention.table,       &attention.slots,
                             &attention.sinks,     &attention.k_scale,     &attention.v_scale};
  for (size_t i = 0; i < std::size(inputs); ++i) *inputs[i] = node.input(i);
  attention.scale = node.number("scale", 0.0f);
  attention.softcap = node.number("softcap", 0.0f);
  attention.left_window = node.integer("left_window", -1);
  return attention;
}

void PagedAttention::write_to(Node& node) const {
  node.op = kPagedAttention;
  node.since_version = 0;
  node.attributes.clear();
  node.inputs = {q,         k,     v,     key_cache, value_cache, rows,
                 positions, table, slots, sinks,     k_scale,     v_scale};
  while (node.inputs.back() == kNoValue) node.inputs.pop_back();
  if (scale != 0.0f) node.attributes["scale"] = scale;
  if (softcap != 0.0f) node.attributes["softcap"] = softcap;
  if (left_window >= 0) node.attributes["left_window"] = left_window;
}

}  // namespace tenon::ir
