// Tile kernel to LLVM IR for an NVIDIA GPU. One task is one block. A tile is a list of scalar
// registers per thread; layouts.h says which element each holds. Whatever must change threads goes
// through shared memory, guarded by barriers that only stand where all threads pass. Indices and
// tiles of rank 0 are equal in all threads, so control flow is uniform.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "codegen/layouts.h"
#include "codegen/llvm/emit_kernel.h"
#include "codegen/llvm/shared_memory.h"
#include "codegen/target.h"

namespace tenon::codegen {

class GpuEmitter : private KernelEmitter {
 public:
  GpuEmitter(const Kernel& kernel, int threads, const GpuTarget& target, llvm::Module& module,
             llvm::IRBuilderBase& ir);
  llvm::Function* run();
  int64_t shared_bytes() const { return shared_.total(); }

 private:
  // Where a register's element lies in its tile; rank 1 is row 0.
  struct Place {
    Value *row = nullptr, *column = nullptr;  // i32
    Value* live = nullptr;                    // null: always
  };

  // emit_gpu.cc: the function, places, threads
  void survey(const Region& region);
  void make_tables();
  void before_region(const Region&) override {}
  void enter_block() override { shared_.forget(); }
  Tile carried(ValueId value, ValueId as) override { return in_layout(value, layouts_[as]); }
  void make_tile(const Operation& op) override;
  void elementwise(const Operation& op) override;
  bool is_uniform(Value* value) const;
  Value* real_function(Fn fn, std::span<Value* const> arguments) override;
  Value* float_remainder(Value* a, Value* b) override;
  Value* f32_to_bf16(Value* x) override;
  Place place(const Layout& layout, int reg, const Type& type);
  Place dealt_place(const Layout& layout, int reg);
  Value* owner(const Layout& layout);  // null: every thread holds the first copy
  Value* both(Value* a, Value* b);     // of predicates that may be null
  void when(Value* condition, const std::function<void()>& inside);
  Tile counted_loop(int count, Tile carried,
                    const std::function<Tile(Value* counter, const Tile& carried)>& body);
  Value* number(int64_t value);  // i32
  Value* times(Value* a, int64_t b);
  Value* plus(Value* a, Value* b);
  Value* plus(Value* a, int64_t b);

  // emit_gpu_shared.cc: what changes threads
  void barrier_before(int64_t offset, int64_t bytes, bool write);
  void emit_barrier();
  Value* shared_pointer(int64_t offset);
  Value* shared_element(DType dtype, int64_t offset, Value* element);
  Value* read_shared(DType dtype, int64_t offset, Value* element);
  void write_shared(DType dtype, int64_t offset, Value* element, Value* value);
  struct Grid {  // a tile in shared memory
    int64_t offset = 0, bytes = 0;
    int pitch = 0;
  };
  Grid make_grid(DType dtype, int rows, int pitch);
  // Neighbours in a row that one vector takes to or from a row of the grid.
  int grid_width(const Grid& grid, const Layout& layout, const Type& type, int first_column) const;
  void write_grid(const Grid& grid, const Tile& tile, const Layout& layout, const Type& type,
                  int first_row = 0, int first_column = 0);
  // Which element of the source an element of the result is.
  struct ElementMap {
    std::function<int64_t(int64_t)> element;  // in row-major numbers
    std::function<std::pair<Value*, Value*>(Value* row, Value* column)> place;
    bool is_identity = false;
  };
  std::optional<Tile> without_moving(const Tile& tile, const Layout& from, const Layout& to,
                                     const ElementMap& map);
  Tile redistribute(const Tile& tile, const Layout& from, const Type& from_type, const Layout& to,
                    const Type& to_type, const ElementMap& map, int pitch);
  Tile in_layout(ValueId id, const Layout& layout);
  Tile convert(const Tile& tile, const Layout& from, const Layout& to, const Type& type);
  Value* shuffle_xor(Value* value, int distance);
  Value* shuffle_word(Value* word, int distance);

  // emit_gpu_shapes.cc
  void shape_operation(const Operation& op) override;
  Tile reshape(const Operation& op);
  Tile broadcast(const Operation& op);
  Tile transpose(const Operation& op);
  Tile slice(const Operation& op);
  Tile concat(const Operation& op);
  void lookup(const Operation& op) override;

  // emit_gpu_reduce.cc
  Tile reduce(const Operation& op);
  Value* identity(Fn fn, DType dtype);
  Value* fold(Fn fn, DType dtype, Value* sum, Value* next);  // sum may be null
  Tile reduce_block(const Operation& op);
  Tile reduce_mma(const Operation& op);
  std::optional<Tile> reduce_runs(const Operation& op);
  std::optional<Tile> reduce_waves(const Operation& op);
  Tile reduce_in_shared(const Operation& op);
  // Adds up `parts` partial results for each element of the result.
  Tile sum_parts(const Operation& op, const Grid& grid, int parts, int part_stride,
                 int element_stride, const Layout& result);

  // emit_gpu_memory.cc
  void memory_operation(const Operation& op) override;
  struct Access {
    DType dtype{};
    Value* base = nullptr;                                  // of element (0, 0)
    Value *row_stride = nullptr, *column_stride = nullptr;  // i64
    Value *row_extent = nullptr, *column_extent = nullptr;  // i32 in [0, size]; null: whole
    int rows = 1, columns = 1;
  };
  Access access(const Operation& op, size_t first_stride, const Type& type);
  void order_memory(const Operation& op);
  int group_width(const Layout& layout, const Type& type, const Access& access);
  Value* groups_apply(const Access& access, int width);  // i1: vectors of `width` may be used
  Value* inside(const Access& access, const Place& place);
  Value* offset_of(const Access& access, const Place& place);
  Tile load(const Operation& op);
  Tile load_groups(const Access& access, const Layout& layout, const Type& type, int width,
                   const Tile& fill);
  Tile repeated(const Tile& group, size_t count);
  Tile in_groups(DType dtype, const Tile& single, int width);
  void store(const Operation& op);
  void store_groups(const Access& access, const Layout& layout, const Type& type, int width,
                    const Tile& tile);
  struct VectorShape;
  Tile load_lanes(DType dtype, Value* pointer, int width);
  Tile unpack_lanes(DType dtype, const Tile& lanes, int width);
  Tile pack_lanes(DType dtype, std::span<Value* const> elements);
  Tile load_vector(DType dtype, Value* pointer, int width);
  void store_vector(DType dtype, Value* pointer, std::span<Value* const> elements);
  void gather(const Operation& op);
  void scatter(const Operation& op);

  // emit_gpu_dots.cc
  void dot(const Operation& op) override;
  void dot_i8(const Operation& op) override;
  void plain_dot(const Operation& op, bool b_transposed);
  void tensor_core_dot(const Operation& op);
  struct Operand;    // where the elements of an operand of mma.sync come from
  struct Fragments;  // the operand, ready to be read step by step
  void plan_operands();
  Operand operand_of(ValueId id) const;
  void plan_fragments(Fragments& fragments, int depth, int other);
  void write_fragments(const Fragments& fragments, int depth, int other);
  void fill_zero(const Grid& grid, int rows, int first_column, int columns, int first_row = 0);
  Tile left_fragment(const Fragments& a, const Layout& sums, int row, int step);
  Tile right_fragments(const Fragments& b, const Layout& sums, int pair, int step);
  Tile load_matrices(const Grid& grid, Value* row, Value* column, int count, bool transposed);
  Value* pack_halves(Value* low, Value* high);

  const GpuTarget& target_;
  int threads_;
  std::vector<Layout> layouts_;
  std::vector<const Operation*> definitions_;
  std::vector<std::vector<std::pair<const Operation*, size_t>>> users_;  // and which operand
  std::set<const Operation*> folded_;  // into the products that use them
  SharedMemory shared_;
  Value *thread_ = nullptr, *lane_ = nullptr, *warp_ = nullptr;  // i32
  Value* shared_base_ = nullptr;
  std::set<Value*> uniform_;                    // registers that are equal in all threads
  std::map<const Operation*, int64_t> tables_;  // constant tables in shared memory
  // Buffers that the kernel reads, writes, scatters to: what may follow what without a barrier.
  std::vector<bool> read_, written_;
  std::vector<DType> scattered_;
};

}  // namespace tenon::codegen
