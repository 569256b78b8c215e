#include "kernels/reference/rotary.h"

#include "base/error.h"
#include "kernels/reference/heads.h"

namespace tenon::kernels::reference {
namespace {

struct Arguments {
  const ReferenceTensor &x, &cos, &sin;
  const ReferenceTensor* positions;  // [B, S], or one number: the first position
};

Outputs rotary(const Call& call, const Arguments& given) {
  const bool packed = given.x.dims.size() == 3;
  int64_t heads = call.node.integer("num_heads", 0);
  const int64_t table_width = 2 * given.cos.dims.back();
  if (packed && heads == 0) heads = given.x.dims[2] / table_width;
  const ReferenceTensor x = to_heads(given.x, packed ? "bs(hd)" : "bhsd", heads);
  const int64_t asked = call.node.integer("rotary_embedding_dim", 0);
  const int64_t width = asked > 0 ? asked : x.dims[3];
  if (table_width != width) throw UserError("the rotary table does not fit the rotated width");
  const int64_t sequence = x.dims[2];
  const auto angle_row = [&](int64_t b, int64_t s) {
    if (!given.positions) return b * sequence + s;  // tables come per batch and position
    if (given.positions->elements() == 1) return given.positions->integers[0] + s;
    const bool shared = given.positions->dims[0] == 1;
    return given.positions->integers.at(static_cast<size_t>((shared ? 0 : b) * sequence + s));
  };
  const ReferenceTensor y = rotate_heads(x, given.cos, given.sin, width,
                                         call.node.integer("interleaved", 0) != 0, angle_row);
  return {from_heads(y, packed ? "bs(hd)" : "bhsd")};
}

Outputs onnx_rotary(const Call& call) {
  return rotary(
      call, {call.input(0), call.input(1), call.input(2), call.has(3) ? &call.input(3) : nullptr});
}

Outputs contrib_rotary(const Call& call) {
  return rotary(call, {call.input(0), call.input(2), call.input(3), &call.input(1)});
}

constexpr auto kOps = std::to_array<OpEntry>({
    {"RotaryEmbedding", onnx_rotary},
    {"com.microsoft::RotaryEmbedding", contrib_rotary},
});

}  // namespace

std::span<const OpEntry> rotary_ops() { return kOps; }

}  // namespace tenon::kernels::reference
