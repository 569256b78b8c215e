// Buffers and rings.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "codegen/interpret/elements.h"
#include "codegen/interpret/interpreter.h"
#include "codegen/tile/op_info.h"

namespace tenon::codegen {

namespace {

// Where the elements of a tile are in a buffer, in elements from its first one.
struct Access {
  int64_t rows = 1, columns = 1;
  int64_t row_stride = 0, stride = 1;
  int64_t row_extent = 1, extent = 1;  // already cut to the tile
};

// A byte of memory that is not 0 is true, whatever its value.
template <typename T>
T from_memory(const std::byte* at) {
  if constexpr (std::is_same_v<T, bool>) {
    return *at != std::byte{0};
  } else {
    T element;
    std::memcpy(&element, at, sizeof(T));
    return element;
  }
}

template <typename T>
void load_elements(const std::byte* base, const Access& access, T* out) {
  constexpr bool as_is = !std::is_same_v<T, bool>;
  for (int64_t row = 0; row < access.row_extent; ++row) {
    const std::byte* line = base + row * access.row_stride * static_cast<int64_t>(sizeof(T));
    T* to = out + row * access.columns;
    if (as_is && access.stride == 1) {
      if (access.extent > 0) std::memcpy(to, line, access.extent * sizeof(T));
      continue;
    }
    const int64_t step = access.stride * static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < access.extent; ++i) to[i] = from_memory<T>(line + i * step);
  }
}

template <typename T>
void store_elements(std::byte* base, const Access& access, const T* in) {
  for (int64_t row = 0; row < access.row_extent; ++row) {
    std::byte* line = base + row * access.row_stride * static_cast<int64_t>(sizeof(T));
    const T* from = in + row * access.columns;
    const int64_t step = access.stride * static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < access.extent; ++i) std::memcpy(line + i * step, from + i, sizeof(T));
  }
}

int64_t element_size(DType dtype) { return static_cast<int64_t>(storage_bytes(dtype, 1)); }

// Strides and extents, one of each per dimension from operand `first` on.
template <typename Index>
Access access_of(const Operation& op, size_t first, const Type& type, Index index) {
  const size_t rank = type.shape.size();
  auto stride = [&](size_t d) { return index(op.operands[first + d]); };
  auto extent = [&](size_t d) -> int64_t {
    const ValueId id = op.operands[first + rank + d];
    const int64_t size = type.shape[d];
    return id == kNone ? size : std::clamp<int64_t>(index(id), 0, size);
  };
  Access out;
  if (rank == 0) return out;
  out.columns = type.shape[rank - 1];
  out.stride = stride(rank - 1);
  out.extent = extent(rank - 1);
  if (rank == 1) return out;
  out.rows = type.shape[0];
  out.row_stride = stride(0);
  out.row_extent = extent(0);
  return out;
}

// The strides in `integers` or those of consecutive elements.
Access read_access(const Operation& op, const Type& type) {
  Access access;
  const size_t rank = type.shape.size();
  if (rank > 0) access.extent = access.columns = type.shape[rank - 1];
  if (rank > 1) access.row_extent = access.rows = type.shape[0];
  access.row_stride = access.columns;
  if (rank > 0 && !op.integers.empty()) access.stride = op.integers[rank - 1];
  if (rank > 1 && !op.integers.empty()) access.row_stride = op.integers[0];
  return access;
}

// visit(row, first byte from the row's own first element, bytes from there to the last one)
template <typename Visit>
void for_rows(const Access& access, int64_t size, const Visit& visit) {
  if (access.extent <= 0) return;
  const int64_t last = (access.extent - 1) * access.stride * size;
  for (int64_t row = 0; row < access.row_extent; ++row) {
    visit(row, std::min<int64_t>(0, last), static_cast<size_t>(std::abs(last) + size));
  }
}

}  // namespace

// The thread that copies runs ahead of those that compute, and waits for itself. It reads the
// numbers that say what to fetch as well.
bool Interpreter::touches_before_wait(const Operation& op, ValueId buffer) {
  if (!pdl_.parameters[static_cast<size_t>(buffer)].before_wait) {
    if (!has_waited_) memory_->wait();
    has_waited_ = true;
    return false;
  }
  const bool fetches = info(op.op).fetches;
  const bool is_number = op.op == Op::kLoad && type(op.results[0]).shape.empty();
  return !has_waited_ || ((fetches || is_number) && !copies_wait_);
}

const std::byte* Interpreter::seen(const Operation& op, ValueId buffer, const std::byte* from,
                                   size_t bytes) {
  const bool is_scratch = static_cast<size_t>(buffer) >= kernel_.parameters.size();
  if (memory_ == nullptr || is_scratch) return from;
  return memory_->read(from, bytes, touches_before_wait(op, buffer));
}

void Interpreter::written(const Operation& op, ValueId buffer, std::byte* to, size_t bytes) {
  const bool is_scratch = static_cast<size_t>(buffer) >= kernel_.parameters.size();
  if (memory_ == nullptr || is_scratch) return;
  memory_->write(to, bytes, touches_before_wait(op, buffer));
}

void Interpreter::memory_operation(const Operation& op) {
  switch (op.op) {
    case Op::kAlloc:
      return alloc(op);
    case Op::kLoad:
      return load(op);
    case Op::kStore:
      return store(op);
    case Op::kGather:
      return gather(op);
    case Op::kScatter:
      return scatter(op);
    case Op::kTileDot:
      return tile_dot(op);
    case Op::kArrive: {
      auto* counters = reinterpret_cast<int32_t*>(values_[op.operands[0]].buffer);
      written(op, op.operands[0], reinterpret_cast<std::byte*>(counters + index(op.operands[1])),
              sizeof(int32_t));
      std::atomic_ref counter(counters[index(op.operands[1])]);
      values_[op.results[0]].index = counter.fetch_add(1, std::memory_order_acq_rel);
      return;
    }
    default:  // kPrefetch
      return;
  }
}

void Interpreter::tile_dot(const Operation& op) {
  const auto buffer_at = [&](size_t i, size_t bytes) {
    return values_[op.operands[i]].buffer + index(op.operands[i + 1]) * static_cast<int64_t>(bytes);
  };
  const auto number = [](const std::byte* bf16) {
    uint16_t bits = 0;
    std::memcpy(&bits, bf16, sizeof bits);
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  };
  const int64_t rows = op.integers[0], columns = op.integers[1];
  const int64_t distance = index(op.operands[6]), k = index(op.operands[7]);
  std::byte* c = buffer_at(0, 4);
  const std::byte *a = buffer_at(2, 2), *b = buffer_at(4, 2);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      std::byte* place = c + 4 * (row * columns + column);
      float sum = 0;
      std::memcpy(&sum, place, sizeof sum);
      for (int64_t i = 0; i < k; ++i) {
        const int64_t left = row / 16 * distance + i / 32 * 512 + row % 16 * 32 + i % 32;
        const int64_t right = (i / 2 * columns + column) * 2 + i % 2;
        sum = std::fma(number(a + 2 * left), number(b + 2 * right), sum);
      }
      std::memcpy(place, &sum, sizeof sum);
    }
  }
}

// Once a task, however often control comes by.
void Interpreter::alloc(const Operation& op) {
  const ValueId id = op.results[0];
  const auto [place, made] = scratch_.try_emplace(id);
  if (made) {
    const size_t bytes = storage_bytes(type(id).dtype, op.integer);
    place->second.resize((bytes + 7) / 8);
    poison(type(id).dtype, reinterpret_cast<std::byte*>(place->second.data()), bytes);
  }
  values_[id].buffer = reinterpret_cast<std::byte*>(place->second.data());
}

void Interpreter::load(const Operation& op) {
  TileData& out = fresh(op.results[0]);
  const Access access = access_of(op, 2, out.type(), [&](ValueId id) { return this->index(id); });
  if (access.row_extent < access.rows || access.extent < access.columns) {
    fill_elements(out, op.number, static_cast<int64_t>(op.number));
  }
  const std::byte* base =
      values_[op.operands[0]].buffer + index(op.operands[1]) * element_size(out.dtype());
  if (memory_ == nullptr) {
    visit_element(out.dtype(),
                  [&]<typename T>() { load_elements<T>(base, access, out.data<T>()); });
    return;
  }
  for_rows(access, element_size(out.dtype()), [&](int64_t row, int64_t first, size_t bytes) {
    const std::byte* line = base + row * access.row_stride * element_size(out.dtype());
    const std::byte* view = seen(op, op.operands[0], line + first, bytes) - first;
    Access alone = access;
    alone.row_extent = 1;
    visit_element(out.dtype(), [&]<typename T>() {
      load_elements<T>(view, alone, out.data<T>() + row * access.columns);
    });
  });
}

void Interpreter::store(const Operation& op) {
  const TileData& in = tile(op.operands[2]);
  const Access access = access_of(op, 3, in.type(), [&](ValueId id) { return this->index(id); });
  std::byte* base =
      values_[op.operands[0]].buffer + index(op.operands[1]) * element_size(in.dtype());
  if (memory_ != nullptr) {
    for_rows(access, element_size(in.dtype()), [&](int64_t row, int64_t first, size_t bytes) {
      std::byte* line = base + row * access.row_stride * element_size(in.dtype());
      written(op, op.operands[0], line + first, bytes);
    });
  }
  visit_element(in.dtype(), [&]<typename T>() { store_elements<T>(base, access, in.data<T>()); });
}

std::vector<int64_t> Interpreter::indices_of(ValueId id) const {
  const Type wide = Type::tile(DType::kI64, type(id).shape);
  TileData numbers;
  numbers.reset(wide);
  interpret_cast(tile(id), numbers);
  return {numbers.data<int64_t>(), numbers.data<int64_t>() + numbers.elements()};
}

void Interpreter::gather(const Operation& op) {
  TileData& out = fresh(op.results[0]);
  const std::vector<int64_t> at = indices_of(op.operands[2]);
  const bool* mask = op.operands[3] == kNone ? nullptr : tile(op.operands[3]).data<bool>();
  const int64_t size = element_size(out.dtype());
  const std::byte* base = values_[op.operands[0]].buffer + index(op.operands[1]) * size;
  if (mask) fill_elements(out, op.number, static_cast<int64_t>(op.number));
  visit_element(out.dtype(), [&]<typename T>() {
    for (size_t i = 0; i < at.size(); ++i) {
      if (mask && !mask[i]) continue;
      const std::byte* from = seen(op, op.operands[0], base + at[i] * size, sizeof(T));
      out.data<T>()[i] = from_memory<T>(from);
    }
  });
}

void Interpreter::scatter(const Operation& op) {
  const TileData& in = tile(op.operands[3]);
  const std::vector<int64_t> at = indices_of(op.operands[2]);
  const bool* mask = op.operands[4] == kNone ? nullptr : tile(op.operands[4]).data<bool>();
  const int64_t size = element_size(in.dtype());
  std::byte* base = values_[op.operands[0]].buffer + index(op.operands[1]) * size;
  for (size_t i = 0; i < at.size(); ++i) {
    if (mask && !mask[i]) continue;
    written(op, op.operands[0], base + at[i] * size, static_cast<size_t>(size));
    std::memcpy(base + at[i] * size, in.data<std::byte>() + static_cast<int64_t>(i) * size, size);
  }
}

void Interpreter::ring_operation(const Operation& op) {
  switch (op.op) {
    case Op::kRing:
      rings_.try_emplace(op.results[0], type(op.results[0]), op.integer);
      return;
    case Op::kBulkLoad:
      return bulk_load(op);
    case Op::kTmaLoad:
      return tma_load(op);
    default:  // kRead
      return read(op);
  }
}

void Interpreter::bulk_load(const Operation& op) {
  Ring& ring = rings_.at(op.operands[0]);
  const std::byte* from =
      values_[op.operands[2]].buffer + index(op.operands[3]) * ring.element_bytes();
  const auto bytes = static_cast<size_t>(ring.stage_elements() * ring.element_bytes());
  std::memcpy(ring.fill(index(op.operands[1])), seen(op, op.operands[2], from, bytes), bytes);
}

void Interpreter::tma_load(const Operation& op) {
  Ring& ring = rings_.at(op.operands[0]);
  const Type& box = type(op.operands[0]);
  auto at = [&](size_t i) { return index(op.operands[i]); };
  const int64_t row = at(3), column = at(4), rows = at(5), columns = at(6), stride = at(7);
  const int64_t size = ring.element_bytes();
  std::byte* to = ring.fill(at(1));
  std::memset(to, 0, ring.stage_elements() * size);
  const int64_t groups = std::max<int64_t>(1, op.integer), height = box.shape[0] / groups;
  for (int64_t r = 0; r < box.shape[0]; ++r) {
    const int64_t at_row = row + r % height, at_column = column + r / height * box.shape[1];
    const int64_t first = std::max<int64_t>(0, -at_column);
    const int64_t last = std::min<int64_t>(box.shape[1], columns - at_column);
    if (at_row < 0 || at_row >= rows || first >= last) continue;
    const int64_t source = at_row * stride + at_column + first;
    const auto bytes = static_cast<size_t>((last - first) * size);
    std::memcpy(to + (r * box.shape[1] + first) * size,
                seen(op, op.operands[2], values_[op.operands[2]].buffer + source * size, bytes),
                bytes);
  }
}

void Interpreter::read(const Operation& op) {
  const Ring& ring = rings_.at(op.operands[0]);
  const std::byte* stage = ring.read(index(op.operands[1]));
  const int64_t first = op.operands[2] == kNone ? 0 : index(op.operands[2]);
  TileData& out = fresh(op.results[0]);
  Access access = read_access(op, out.type());
  const int64_t last =
      first + (access.rows - 1) * access.row_stride + (access.columns - 1) * access.stride;
  if (std::min(first, last) < 0 || std::max(first, last) >= ring.stage_elements()) {
    throw InternalError(
        fmt::format("elements {} to {} of a stage of {}", first, last, ring.stage_elements()));
  }
  if (op.operands[3] != kNone) {
    access.row_extent = std::clamp<int64_t>(index(op.operands[3]), 0, access.rows);
    std::memset(out.data<std::byte>(), 0, out.bytes());
  }
  visit_width(out.dtype(), [&]<typename T>() {
    load_elements<T>(stage + first * ring.element_bytes(), access, out.data<T>());
  });
}

}  // namespace tenon::codegen
