// Making tiles and moving their elements.
#include <bit>
#include <cstring>
#include <numeric>
#include <vector>

#include "codegen/interpret/elements.h"
#include "codegen/interpret/tile_data.h"

namespace tenon::codegen {

namespace {

// Every tile as a matrix: leading dimensions that are missing count 1.
struct Size {
  int64_t rows = 1, columns = 1;
};

Size size_of(const Type& type) {
  if (type.shape.empty()) return {};
  if (type.shape.size() == 1) return {1, type.shape[0]};
  return {type.shape[0], type.shape[1]};
}

void broadcast(const TileData& x, TileData& out) {
  const Size from = size_of(x.type()), to = size_of(out.type());
  const int64_t row_step = from.rows == 1 ? 0 : from.columns, step = from.columns == 1 ? 0 : 1;
  visit_width(out.dtype(), [&]<typename T>() {
    T* element = out.data<T>();
    for (int64_t row = 0; row < to.rows; ++row) {
      const T* source = x.data<T>() + row * row_step;
      for (int64_t column = 0; column < to.columns; ++column) *element++ = source[column * step];
    }
  });
}

void transpose(const TileData& x, TileData& out) {
  const Size from = size_of(x.type());
  visit_width(out.dtype(), [&]<typename T>() {
    const T* source = x.data<T>();
    for (int64_t row = 0; row < from.rows; ++row) {
      T* to = out.data<T>() + row;
      for (int64_t column = 0; column < from.columns; ++column) to[column * from.rows] = *source++;
    }
  });
}

void slice(const Operation& op, const TileData& x, TileData& out) {
  const Size from = size_of(x.type()), to = size_of(out.type());
  const size_t element = out.bytes() / static_cast<size_t>(out.elements());
  const int64_t column = op.integers.empty() ? 0 : op.integers.back();
  const int64_t first = op.integers.size() == 2 ? op.integers[0] : 0;
  for (int64_t row = 0; row < to.rows; ++row) {
    std::memcpy(out.data<std::byte>() + row * to.columns * element,
                x.data<std::byte>() + ((first + row) * from.columns + column) * element,
                to.columns * element);
  }
}

void concat(const Operation& op, TileOperands in, TileData& out) {
  const Size to = size_of(out.type());
  const size_t element = out.bytes() / static_cast<size_t>(out.elements());
  const bool along_columns = op.axis + 1 == static_cast<int>(out.type().shape.size());
  std::byte* target = out.data<std::byte>();
  for (const TileData* part : in) {
    if (!along_columns) {
      std::memcpy(target, part->data<std::byte>(), part->bytes());
      target += part->bytes();
      continue;
    }
    const size_t row_bytes = size_of(part->type()).columns * element;
    for (int64_t row = 0; row < to.rows; ++row) {
      std::memcpy(target + row * to.columns * element, part->data<std::byte>() + row * row_bytes,
                  row_bytes);
    }
    target += row_bytes;
  }
}

void permute(const Operation& op, const TileData& x, TileData& out) {
  std::vector<uint32_t> source(static_cast<size_t>(out.elements()), 0);
  for (size_t element = 1; element < source.size(); ++element) {
    const size_t rest = element & (element - 1);
    source[element] = source[rest] | 1u << op.integers[std::countr_zero(element)];
  }
  visit_width(out.dtype(), [&]<typename T>() {
    for (size_t i = 0; i < source.size(); ++i) out.data<T>()[i] = x.data<T>()[source[i]];
  });
}

// ---- reductions

template <typename C>
C combined(Fn fn, C a, C b) {
  switch (fn) {
    case Fn::kMul:
      return a * b;
    case Fn::kMin:
      return a != a || a < b ? a : b;
    case Fn::kMax:
      return a != a || a > b ? a : b;
    default:
      return a + b;
  }
}

template <typename T>
T combined_integer(Fn fn, T a, T b) {
  using W = uint64_t;
  switch (fn) {
    case Fn::kAnd:
      return static_cast<T>(a & b);
    case Fn::kOr:
      return static_cast<T>(a | b);
    case Fn::kMul:
      return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
    case Fn::kMin:
      return a < b ? a : b;
    case Fn::kMax:
      return a > b ? a : b;
    default:
      return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  }
}

// Floats are reduced in f64 and rounded once: which order an emitter takes is its own affair.
template <typename T>
T reduced(Fn fn, const T* x, int64_t count, int64_t step) {
  if constexpr (is_float_element<T>) {
    double sum = value_of(x[0]);
    for (int64_t i = 1; i < count; ++i) sum = combined<double>(fn, sum, value_of(x[i * step]));
    return element_of<T>(static_cast<Computed<T>>(sum));
  } else {
    T sum = x[0];
    for (int64_t i = 1; i < count; ++i) sum = combined_integer<T>(fn, sum, x[i * step]);
    return sum;
  }
}

void reduce(const Operation& op, const TileData& x, TileData& out) {
  const Size from = size_of(x.type());
  const bool along_columns = op.axis + 1 == static_cast<int>(x.type().shape.size());
  visit_element(out.dtype(), [&]<typename T>() {
    const T* source = x.data<T>();
    for (int64_t i = 0; i < out.elements(); ++i) {
      out.data<T>()[i] = along_columns ? reduced(op.fn, source + i * from.columns, from.columns, 1)
                                       : reduced(op.fn, source + i, from.rows, from.columns);
    }
  });
}

void iota(const Operation& op, TileData& out) {
  const Size to = size_of(out.type());
  const bool along_columns = op.axis + 1 == static_cast<int>(out.type().shape.size());
  Type counts = Type::tile(DType::kI64, out.type().shape);
  TileData numbers;
  numbers.reset(counts);
  int64_t* number = numbers.data<int64_t>();
  for (int64_t row = 0; row < to.rows; ++row) {
    for (int64_t column = 0; column < to.columns; ++column) {
      *number++ = along_columns ? column : row;
    }
  }
  interpret_cast(numbers, out);
}

}  // namespace

void fill_elements(TileData& out, double number, int64_t integer) {
  visit_element(out.dtype(), [&]<typename T>() {
    T element{};
    if constexpr (is_half_element<T>) {
      element = {static_cast<uint16_t>(encode(out.dtype(), number, {.saturate = false}))};
    } else if constexpr (is_float_element<T>) {
      element = static_cast<T>(number);
    } else {
      element = static_cast<T>(integer);
    }
    std::fill_n(out.data<T>(), out.elements(), element);
  });
}

void interpret_constant(const Operation& op, TileData& out) {
  if (op.op == Op::kIota) return iota(op, out);
  if (op.integers.empty()) return fill_elements(out, op.number, op.integer);
  visit_element(out.dtype(), [&]<typename T>() {
    for (size_t i = 0; i < op.integers.size(); ++i) {
      const auto number = std::bit_cast<double>(op.integers[i]);
      if constexpr (is_half_element<T>) {
        const uint64_t code = encode(out.dtype(), number, {.saturate = false});
        out.data<T>()[i] = {static_cast<uint16_t>(code)};
      } else if constexpr (is_float_element<T>) {
        out.data<T>()[i] = static_cast<T>(number);
      } else {
        out.data<T>()[i] = static_cast<T>(op.integers[i]);
      }
    }
  });
}

void interpret_shape(const Operation& op, TileOperands in, TileData& out) {
  switch (op.op) {
    case Op::kSplat:
    case Op::kBroadcast:
      return broadcast(*in[0], out);
    case Op::kTranspose:
      return transpose(*in[0], out);
    case Op::kSlice:
      return slice(op, *in[0], out);
    case Op::kConcat:
      return concat(op, in, out);
    case Op::kPermute:
      return permute(op, *in[0], out);
    case Op::kReduce:
      return reduce(op, *in[0], out);
    default:  // kReshape
      std::memcpy(out.data<std::byte>(), in[0]->data<std::byte>(), out.bytes());
  }
}

void interpret_lookup(TileOperands in, TileData& out) {
  const auto mask = static_cast<uint64_t>(in[0]->elements() - 1);
  visit_element(in[1]->dtype(), [&]<typename Code>() {
    visit_width(out.dtype(), [&]<typename T>() {
      if constexpr (is_integer_element<Code>) {
        for (int64_t i = 0; i < out.elements(); ++i) {
          const auto code = static_cast<uint64_t>(in[1]->data<Code>()[i]);
          out.data<T>()[i] = in[0]->data<T>()[code & mask];
        }
      }
    });
  });
}

}  // namespace tenon::codegen
