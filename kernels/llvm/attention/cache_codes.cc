#include "kernels/llvm/attention/cache_codes.h"

#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;
using Nothing = std::vector<ValueId>;

constexpr int64_t kOffset = 8;  // of 4-bit codes, as they are stored

// What both launches share: a cache of codes, seen in tiles [heads or rows, bytes].
class CodedRows {
 public:
  CodedRows(const char* kernel, const ir::Graph& graph, const AttentionProblem& problem,
            const CacheCodes& cache, const HeadTiles& tiles)
      : problem_(problem),
        type_(problem.attention.cache_type),
        depth_(cache.depth),
        width_(problem.cache_width(cache.depth)),
        columns_(tiles.width_of(width_)),
        tiles_(tiles),
        writer_(kernel),
        b_(writer_.builder) {
    const ir::Attention& attention = problem.attention;
    codes_ = writer_.buffer("codes", storage_type(type_), cache.codes);
    scale_ = writer_.buffer("scale", DType::kF32, BufferArgument::value(cache.scale));
    one_scale_ = element_count(*graph.value(cache.scale).shape).is(1);
    if (attention.kv_lengths != ir::kNoValue) {
      lengths_ = writer_.buffer("lengths", graph.value(attention.kv_lengths).dtype,
                                BufferArgument::value(attention.kv_lengths));
    }
    for (const Dim& dim : {problem.past, problem.keys, problem.all_keys}) writer_.declare(dim);
  }

 protected:
  bool is_packed() const { return type_ == DType::kI4; }
  int64_t codes_of_byte() const { return is_packed() ? 2 : 1; }
  ValueId dim(const Dim& value) { return writer_.index(value); }
  ValueId row_of(ValueId head_number, ValueId row) {
    return b_.mul({b_.add(b_.mul(head_number, dim(problem_.all_keys)), row), b_.index(width_)});
  }
  ValueId bytes_left(ValueId byte) {
    return width_ % columns_ == 0 ? kNone : b_.sub(b_.index(width_), byte);
  }

  // Of code `part` of each byte of a tile; rows of it are `heads` heads, or all of one.
  Tile scales(ValueId head, ValueId byte, int64_t part, std::vector<int> shape, bool heads,
              ValueId rows_left) {
    if (one_scale_) return b_.splat(b_.load({scale_, b_.index(0)}, {}), std::move(shape));
    const ValueId column = b_.add({b_.mul(byte, b_.index(codes_of_byte())), b_.index(part)});
    const ValueId at = b_.add(b_.mul(head, b_.index(depth_)), column);
    return b_.load({scale_,
                    at,
                    {b_.index(heads ? depth_ : 0), b_.index(codes_of_byte())},
                    {rows_left, bytes_left(byte)}},
                   std::move(shape), 1);
  }

  Tile number(Tile bytes, int64_t part) {
    if (!is_packed()) return numbers_of(b_, bytes, type_);
    const auto integer = [&](int64_t value) {
      return b_.integer_constant(DType::kI32, value, b_.type(bytes).shape);
    };
    const Tile wide = b_.cast(bytes, DType::kI32);
    const Tile nibble = part == 0 ? b_.binary(Fn::kAnd, wide, integer(15))
                                  : b_.binary(Fn::kShiftRight, wide, integer(4));
    return numbers_of(b_, nibble, type_);
  }

  const AttentionProblem& problem_;
  const DType type_;
  const int64_t depth_, width_;
  const int columns_;
  const HeadTiles& tiles_;
  LaunchWriter writer_;
  Builder& b_;
  ValueId codes_ = kNone, scale_ = kNone, lengths_ = kNone;
  bool one_scale_ = false;
};

// A task has one token and some heads.
class AppendCodes : CodedRows {
 public:
  AppendCodes(const ir::Graph& graph, const AttentionProblem& problem, const CacheCodes& cache,
              BufferArgument from, DType type, const HeadStrides& strides, const HeadTiles& tiles)
      : CodedRows("append_codes", graph, problem, cache, tiles),
        from_type_(type),
        strides_(strides),
        from_(writer_.buffer("new", storage_type(type), from)) {
    for (const Dim& dim : {strides.batch, strides.head, strides.row, strides.column}) {
      writer_.declare(dim);
    }
  }

  Launch emit() {
    const int64_t heads = problem_.attention.kv_heads;
    const int64_t groups = (heads + tiles_.heads_per_task - 1) / tiles_.heads_per_task;
    const ValueId token = b_.div({b_.task(), b_.index(groups)});
    const ValueId first =
        b_.mul({b_.rem({b_.task(), b_.index(groups)}), b_.index(tiles_.heads_per_task)});
    const ValueId end = b_.min({b_.index(heads), b_.add(first, b_.index(tiles_.heads_per_task))});
    batch_ = b_.div(token, dim(problem_.keys));
    row_ = b_.rem(token, dim(problem_.keys));
    to_row_ = b_.add(kept_rows(writer_, problem_, lengths_, batch_), row_);
    b_.loop(first, end, b_.index(tiles_.heads), {}, [&](ValueId head, auto) {
      const ValueId left = heads % tiles_.heads == 0 ? kNone : b_.sub(b_.index(heads), head);
      b_.loop({b_.index(0), b_.index(width_), b_.index(columns_)}, {}, [&](ValueId byte, auto) {
        append(head, left, byte);
        return Nothing{};
      });
      return Nothing{};
    });
    Launch launch = writer_.finish(problem_.batch * problem_.keys * groups, heads * depth_);
    launch.threads = tiles_.threads;
    return launch;
  }

 private:
  void append(ValueId head, ValueId heads_left, ValueId byte) {
    Tile bytes = coded(head, heads_left, byte, 0);
    if (is_packed()) bytes = packed_codes(b_, bytes, coded(head, heads_left, byte, 1));
    const ValueId number = b_.add(b_.mul(batch_, b_.index(problem_.attention.kv_heads)), head);
    const ValueId stride = b_.mul({dim(problem_.all_keys), b_.index(width_)});
    b_.store({codes_,
              b_.add(row_of(number, to_row_), byte),
              {stride, b_.index(1)},
              {heads_left, bytes_left(byte)}},
             bytes);
  }

  // The codes that are number `part` in their bytes.
  Tile coded(ValueId head, ValueId heads_left, ValueId byte, int64_t part) {
    const std::vector<int> shape = {tiles_.heads, columns_};
    const ValueId step = b_.index(codes_of_byte());
    const ValueId column = b_.add({b_.mul(byte, step), b_.index(part)});
    const ValueId token =
        b_.add({b_.mul(batch_, dim(strides_.batch)), b_.mul(row_, dim(strides_.row))});
    const ValueId at = b_.add(
        token, b_.add({b_.mul(head, dim(strides_.head)), b_.mul(column, dim(strides_.column))}));
    const Tile x = b_.load({from_,
                            at,
                            {dim(strides_.head), b_.mul(step, dim(strides_.column))},
                            {heads_left, bytes_left(byte)}},
                           shape);
    const Tile scale = scales(head, byte, part, shape, /*heads=*/true, heads_left);
    return to_codes(b_, b_.div(dequantize_tile(b_, x, from_type_), scale), type_);
  }

  const DType from_type_;
  const HeadStrides strides_;
  ValueId from_;
  ValueId batch_ = kNone, row_ = kNone, to_row_ = kNone;
};

// A task has some rows of one head.
class DequantizeCache : CodedRows {
 public:
  DequantizeCache(const ir::Graph& graph, const AttentionProblem& problem, const CacheCodes& cache,
                  BufferArgument to, DType type, const HeadTiles& tiles)
      : CodedRows("dequantize_cache", graph, problem, cache, tiles),
        to_type_(type),
        to_(writer_.buffer("numbers", storage_type(type), to)) {
    writer_.declare(blocks());
  }

  Launch emit() {
    const ValueId head_number = b_.div({b_.task(), dim(blocks())});
    const ValueId heads = b_.index(problem_.attention.kv_heads);
    const ValueId first = b_.mul({b_.rem({b_.task(), dim(blocks())}), b_.index(kRows)});
    const ValueId rows = visible_rows(b_.div(head_number, heads));
    const ValueId end = b_.min(rows, b_.add(first, b_.index(kRows)));
    b_.loop(first, end, b_.index(tiles_.rows), {}, [&](ValueId row, auto) {
      b_.loop({b_.index(0), b_.index(width_), b_.index(columns_)}, {}, [&](ValueId byte, auto) {
        const ValueId head = b_.rem(head_number, heads), left = b_.sub(end, row);
        dequantize(head_number, head, row, left, byte);
        return Nothing{};
      });
      return Nothing{};
    });
    const Dim tasks = problem_.batch * problem_.attention.kv_heads * blocks();
    Launch launch = writer_.finish(tasks, kRows * (depth_ / 4 + 1));
    launch.threads = tiles_.threads;
    return launch;
  }

 private:
  static constexpr int64_t kRows = 64;  // of a task
  Dim blocks() const { return tenon::ceil_div(problem_.all_keys, Dim(kRows)); }

  // What lies behind them is nobody's business.
  ValueId visible_rows(ValueId batch) {
    const ValueId all = dim(problem_.all_keys);
    if (lengths_ == kNone) return all;
    const ValueId kept = kept_rows(writer_, problem_, lengths_, batch);
    return b_.min(all, b_.add(kept, dim(problem_.keys)));
  }

  void dequantize(ValueId head_number, ValueId head, ValueId row, ValueId rows_left, ValueId byte) {
    const std::vector<int> shape = {tiles_.rows, columns_};
    const Tile bytes = b_.load({codes_,
                                b_.add(row_of(head_number, row), byte),
                                {b_.index(width_), b_.index(1)},
                                {rows_left, bytes_left(byte)}},
                               shape);
    const ValueId to_row = b_.add(b_.mul(head_number, dim(problem_.all_keys)), row);
    for (int64_t part = 0; part < codes_of_byte(); ++part) {
      const Tile scale = scales(head, byte, part, shape, /*heads=*/false, kNone);
      const Tile x = within_range(b_.mul(number(bytes, part), scale));
      const ValueId column = b_.add({b_.mul(byte, b_.index(codes_of_byte())), b_.index(part)});
      b_.store({{to_,
                 b_.add(b_.mul(to_row, b_.index(depth_)), column),
                 {b_.index(depth_), b_.index(codes_of_byte())},
                 {rows_left, bytes_left(byte)}},
                quantize_tile(b_, x, to_type_)});
    }
  }

  // The largest keys of f16 may have been rounded up by their code.
  Tile within_range(Tile x) {
    if (to_type_ != DType::kF16) return x;
    constexpr double kLargest = 65504;
    const auto limit = [&](double value) {
      return b_.constant(DType::kF32, value, b_.type(x).shape);
    };
    return b_.max({b_.min(x, limit(kLargest)), limit(-kLargest)});
  }

  const DType to_type_;
  ValueId to_;
};

}  // namespace

Tile to_codes(Builder& b, Tile scaled, DType type) {
  if (type != DType::kI4) return quantize_to_codes(b, scaled, kNone, type, /*saturate=*/true);
  const Tile offset = b.constant(DType::kF32, kOffset, b.type(scaled).shape);
  return quantize_to_codes(b, scaled, offset, DType::kU4, /*saturate=*/true);
}

Tile numbers_of(Builder& b, Tile codes, DType type) {
  if (is_floating(type)) return dequantize_tile(b, codes, type);
  if (type != DType::kI4) return b.cast(codes, DType::kF32);
  const Tile offset = b.constant(DType::kF32, kOffset, b.type(codes).shape);
  return b.sub(b.cast(b.cast(codes, DType::kI32), DType::kF32), offset);
}

Tile packed_codes(Builder& b, Tile low, Tile high) {
  const Tile four = b.integer_constant(DType::kI32, 4, b.type(low).shape);
  const Tile shifted = b.binary(Fn::kShiftLeft, b.cast(high, DType::kI32), four);
  return b.cast(b.add(b.cast(low, DType::kI32), shifted), DType::kU8);
}

Launch append_codes_launch(const ir::Graph& graph, const AttentionProblem& problem,
                           const CacheCodes& cache, BufferArgument from, DType type,
                           const HeadStrides& strides, const HeadTiles& tiles) {
  return AppendCodes(graph, problem, cache, from, type, strides, tiles).emit();
}

Launch dequantize_cache_launch(const ir::Graph& graph, const AttentionProblem& problem,
                               const CacheCodes& cache, BufferArgument to, DType type,
                               const HeadTiles& tiles) {
  return DequantizeCache(graph, problem, cache, to, type, tiles).emit();
}

}  // namespace tenon::kernels
