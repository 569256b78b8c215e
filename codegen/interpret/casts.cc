#include <cstring>

#include "codegen/interpret/elements.h"
#include "codegen/interpret/tile_data.h"

namespace tenon::codegen {

namespace {

template <typename From, typename To>
To convert(From x, DType to) {
  constexpr bool real = is_float_element<From>;
  if constexpr (std::is_same_v<To, bool>) {
    return value_of(x) != 0;
  } else if constexpr (real && is_integer_element<To>) {
    return static_cast<To>(encode(to, static_cast<double>(value_of(x))));
  } else if constexpr (std::is_same_v<From, double> && is_half_element<To>) {
    return {static_cast<uint16_t>(encode(to, x, {.saturate = false}))};
  } else if constexpr (is_half_element<To>) {
    return element_of<To>(static_cast<float>(value_of(x)));
  } else {
    return static_cast<To>(value_of(x));
  }
}

}  // namespace

void interpret_cast(const TileData& x, TileData& out) {
  if (x.dtype() == out.dtype()) {
    std::memcpy(out.data<std::byte>(), x.data<std::byte>(), out.bytes());
    return;
  }
  visit_element(x.dtype(), [&]<typename From>() {
    visit_element(out.dtype(), [&]<typename To>() {
      const From* from = x.data<From>();
      To* to = out.data<To>();
      for (int64_t i = 0; i < out.elements(); ++i) to[i] = convert<From, To>(from[i], out.dtype());
    });
  });
}

}  // namespace tenon::codegen
