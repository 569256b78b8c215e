// Tile kernel to LLVM IR for the host. LLVM's own headers stay in the .cc files.
//
// A tile is a list of lines: rank 1 is one, rank 2 one per row; rows of at most kPackedRow elements
// are packed into one line, so that [m,1] and [n,4] tiles do not fall apart. A line becomes LLVM
// vectors called pieces, whose lanes are powers of two (48 = 32 + 16), since LLVM pads any other
// width. Pieces depend on the shape alone, so elementwise operations go piece by piece. Control
// flow and carried tiles are SSA from the start.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "codegen/llvm/emit_kernel.h"
#include "codegen/target.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

inline constexpr int kPackedRow = 4;

// Shape of the lines of a tile: how many there are, and how many lanes each has.
struct LineShape {
  int count = 1, lanes = 1;
};
LineShape line_shape(const Type& type);
bool has_packed_rows(const Type& type);
// 48 -> 32, 16
std::vector<int> piece_widths(int lanes);

// libm functions that f64 tiles and `rem` call, one lane at a time.
struct LibmFunction {
  Fn fn;
  const char* name;
  int arguments;
  void* address;
};
std::span<const LibmFunction> libm_functions();

// A loop that is a function of its own, and the values that it is called with.
struct LoopFunction {
  llvm::Function* function = nullptr;
  std::vector<ValueId> arguments;
};
using LoopFunctions = std::unordered_map<const Operation*, LoopFunction>;

class HostEmitter : private KernelEmitter {
 public:
  HostEmitter(const Kernel& kernel, const HostTarget& target, llvm::Module& module,
              llvm::IRBuilderBase& ir, const LoopFunctions& loops = {});
  llvm::Function* run();
  // The body alone, once, for others of the module to call: void(parameters…).
  llvm::Function* run_as_loop();

 private:
  // emit_host.cc: the function and what is known before it is written
  void survey(const Region& region);
  void hoist_allocs(const Region& region);
  void control_operation(const Operation& op) override;
  void call(const LoopFunction& loop);
  void loop_at_most_once(const Operation& op, bool runs);
  void known_side(const Operation& op, bool condition);

  // emit_pieces.cc: how tiles lie in LLVM values
  llvm::Type* vector_of(llvm::Type* element, int lanes) const;
  Tile splat_pieces(Value* scalar, const Type& type);
  // Lines or rows as whole vectors, and back.
  std::vector<Value*> lines(const Tile& tile, const Type& type);
  std::vector<Value*> rows(const Tile& tile, const Type& type);
  Value* flat(const Tile& tile, const Type& type);
  Tile from_lines(const std::vector<Value*>& lines);
  Tile from_rows(std::vector<Value*> rows, const Type& type);
  Tile from_flat(Value* flat, const Type& type);
  // Rows of a rank-2 tile in pieces, and back.
  std::vector<Tile> row_pieces(const Tile& tile, const Type& type);
  Tile from_row_pieces(std::vector<Tile> rows, const Type& type);
  Value* subvector(Value* vector, int first, int count);
  Value* join(std::vector<Value*> parts);
  Value* lane(Value* vector, int64_t index);
  // Runs `chunk` on `lanes` lanes at a time, as instructions of a fixed width need it.
  Value* in_chunks(Value* vector, int lanes, const std::function<Value*(Value*)>& chunk);

  // emit_shapes.cc
  void make_tile(const Operation& op) override;
  void shape_operation(const Operation& op) override;
  Tile broadcast(const Operation& op);
  Tile slice(const Operation& op);
  Tile permute(const Operation& op);
  Tile concat(const Operation& op);
  Tile transpose(const Operation& op);
  Value* columns_of(const Tile& pieces, int first, int count);
  Tile line_from_blocks(const std::vector<Value*>& blocks, int lanes);
  std::vector<Value*> transpose_square(std::vector<Value*> rows, int size);
  Tile reduce(const Operation& op);
  Value* reduce_lanes(Fn fn, DType dtype, Value* vector);
  Value* reduce_line(Fn fn, DType dtype, std::span<Value* const> pieces);

  // emit_host_elementwise.cc
  void elementwise(const Operation& op) override;
  Value* addend(Value* constant);
  Value* real_function(Fn fn, std::span<Value* const> arguments) override;
  Value* truncate_to(int bits, Value* x) override;
  Value* truncate_to_i32_x86(Value* x);

  // emit_memory.cc
  void memory_operation(const Operation& op) override;
  struct Access {
    DType dtype{};
    Value* base = nullptr;  // of element (0, 0)
    std::vector<Value*> strides, extents;
  };
  Access access(const Operation& op, size_t first_stride, size_t rank);
  Tile load(const Operation& op);
  void store(const Operation& op);
  // Part of a line: where it starts, and what bounds it.
  struct Line {
    DType dtype{};
    Value *base = nullptr, *stride = nullptr;
    Value *extent = nullptr, *enabled = nullptr;  // null: no bound
  };
  Line line_of(const Access& access, size_t dimension, Value* base, Value* extent, Value* enabled);
  Line advanced(const Line& line, int lanes);
  Tile load_line(Line line, int lanes, Value* fill);
  void store_line(Line line, std::span<Value* const> pieces);
  Value* load_piece(const Line& line, int lanes, Value* fill);
  void store_piece(const Line& line, Value* value);
  std::vector<Line> lines_of(const Access& access, const std::vector<int>& shape);
  int prefetch_locality() const;
  Value* element_pointer(DType dtype, Value* base, Value* offset);
  Value* row_pointer(const Access& access, int64_t row);
  Value* load_scalar(DType dtype, Value* pointer);
  Value* lane_mask(Value* extent, int lanes, Value* enabled);
  Value* row_enabled(Value* extent, int64_t row);
  Value* pointer_vector(DType dtype, Value* base, Value* offsets);
  Value* strided_offsets(Value* stride, int lanes);
  void gather(const Operation& op);
  void scatter(const Operation& op);

  // emit_lanes.cc
  bool moves_by_lane(DType dtype, bool is_masked) const;
  Value* lane_room(llvm::Type* vector);
  void for_lanes(Value* count, const std::function<void(Value* lane)>& body);
  Value* lane_count(const Line& line, int lanes);
  Value* load_lanes(const Line& line, int lanes, Value* fill);
  void store_lanes(const Line& line, int lanes, Value* value);
  struct LaneList;
  LaneList list_lanes(Value* offsets, Value* mask);
  Value* lane_pointer(const LaneList& list, DType dtype, Value* base, Value* lane,
                      Value* otherwise);
  Value* gather_lanes(DType dtype, Value* base, Value* offsets, Value* mask, Value* fill);
  void scatter_lanes(DType dtype, Value* base, Value* offsets, Value* mask, Value* value);

  // emit_lookup.cc
  void lookup(const Operation& op) override;
  Value* lookup_piece(DType dtype, Value* table, Value* codes);
  Value* lookup_in_memory(DType dtype, Value* table, Value* codes);
  Value* permute_words(Value* table, Value* codes);
  Value* permute_words_neon(Value* floats, Value* codes);
  Value* permute_bytes(Value* table, Value* codes);

  // emit_dots.cc
  void before_region(const Region& region) override;
  void dot(const Operation& op) override;
  Value* round_to_tf32(Value* x);
  void multiply_add(DType dtype, Tile& sums, Value* factor, const Tile& row);
  void dot_i8(const Operation& op) override;
  void dot_i8_matrices(const Operation& op);
  std::vector<Value*> dot_a_rows(const Operation& op);
  Value* dot_a_element(ValueId a, const std::vector<Value*>& rows, int m, int k);
  Value* group_of_row(ValueId a, const std::vector<Value*>& a_rows, int row, int group);
  std::vector<Tile> groups_of_lanes(ValueId b);
  Value* four_bytes(Value* acc, Value* a, bool a_signed, Value* b);
  Value* four_bytes_x86(Value* acc, Value* a, bool a_signed, Value* b);
  Value* four_bytes_neon(Value* acc, Value* a, bool a_signed, Value* b);
  Value* four_bytes_anywhere(Value* acc, Value* a, bool a_signed, Value* b);

  // emit_tiles.cc
  void tile_dot(const Operation& op) override;
  struct TileOperands;
  void tile_dot_amx(const TileOperands& at);
  void tile_dot_rows(const TileOperands& at);
  using CountedBody = std::function<std::vector<Value*>(Value* i, std::vector<Value*> carried)>;
  std::vector<Value*> counted(Value* count, int step, std::vector<Value*> carried,
                              const CountedBody& body);
  void configure_tiles();
  void release_tiles();

  const HostTarget& target_;
  const LoopFunctions loops_;
  bool uses_tiles_ = false;
  std::vector<int> uses_;
  std::unordered_map<ValueId, int64_t> index_values_;  // of kIndexConstant
  // Loads that a dot reads element by element, so that they become broadcasts from memory.
  std::unordered_map<ValueId, const Operation*> folded_loads_;
  std::unordered_map<uint64_t, Value*> addend_slots_;  // by the bits that they hold
  std::unordered_map<llvm::Type*, llvm::AllocaInst*> lane_rooms_;
};

}  // namespace tenon::codegen
