// Tile kernel to LLVM IR for an NVIDIA GPU. One task is one CTA. A tile is a list of scalar
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

#include "codegen/compile.h"
#include "codegen/layouts.h"
#include "codegen/llvm/emit_kernel.h"
#include "codegen/llvm/products_in_flight.h"
#include "codegen/llvm/ptx.h"
#include "codegen/llvm/shared_memory.h"
#include "codegen/moves.h"
#include "codegen/pdl.h"
#include "codegen/product_operands.h"
#include "codegen/target.h"

namespace llvm {
class AllocaInst;
}

namespace tenon::codegen {

class GpuEmitter : private KernelEmitter {
 public:
  GpuEmitter(const Kernel& kernel, int threads, const GpuTarget& target, llvm::Module& module,
             llvm::IRBuilderBase& ir);
  llvm::Function* run();
  int64_t shared_bytes() const { return shared_.total(); }
  int threads() const;      // of a CTA, with those that only copy
  int ctas_per_sm() const;  // that should run beside each other
  // With TMA: the descriptors that follow the parameters.
  std::vector<TmaDescriptor> tma_descriptors() const {
    return specialised_ ? tma_descriptors_ : std::vector<TmaDescriptor>{};
  }
  bool uses_pdl() const { return has_pdl(target_) && pdl_.is_used(); }
  bool has_registers_to_spare() const;

 private:
  // Where a register's element lies in its tile; rank 1 is row 0.
  struct Place {
    Value *row = nullptr, *column = nullptr;  // i32
    Value* live = nullptr;                    // null: always
  };

  // emit_gpu.cc: the function, places, threads
  void survey(const Region& region);
  void create_function();
  void read_position();
  void place_shared_memory();
  void make_tables();
  int64_t keep_table(DType dtype, const std::vector<int64_t>& table);
  // What was waited for inside of a region may not have been where it is left out.
  void before_region(const Region&) override { waited_around_.push_back(has_waited_); }
  void after_region(const Region&) override {
    has_waited_ = waited_around_.back();
    waited_around_.pop_back();
  }
  void enter_block() override {
    shared_.forget();
    turned_.forget();
  }
  bool wanted(const Operation& op) override;
  Tile carried(ValueId value, ValueId as) override;
  void make_tile(const Operation& op) override;
  void elementwise(const Operation& op) override;
  bool is_uniform(Value* value) const;
  Value* real_function(Fn fn, std::span<Value* const> arguments) override;
  Value* float_remainder(Value* a, Value* b) override;
  Value* quotient(Value* a, Value* b) override;
  Value* remainder(Value* a, Value* b) override;
  Value* long_quotient(Value* a, Value* b);
  bool divides_inline(Value* divisor) const;
  Value* reciprocal(Value* x) override;
  Value* join_bits(Value* a, Value* b) override;
  Value* f32_to_bf16(Value* x) override;
  Place place(const Layout& layout, int reg, const Type& type);
  Place dealt_place(const Layout& layout, int reg);
  Place bits_place(const Layout& layout, int reg);
  Value* owner(const Layout& layout);  // null: every thread holds the first copy
  Value* both(Value* a, Value* b);     // of predicates that may be null
  void when(Value* condition, const std::function<void()>& inside);
  Tile counted_loop(int count, Tile carried,
                    const std::function<Tile(Value* counter, const Tile& carried)>& body,
                    bool rolled = false);  // kept a loop by the assembler
  Value* number(int64_t value);            // i32
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
  void write_grid(const Grid& grid, const Tile& tile, const Layout& layout, const Type& type,
                  int first_row = 0, int first_column = 0);
  // Where in the source an element of the result lies.
  using PlaceMap = std::function<std::pair<Value*, Value*>(Value* row, Value* column)>;
  Tile redistribute(const Tile& tile, const Layout& from, const Type& from_type, const Layout& to,
                    const Type& to_type, const PlaceMap& source_of, int pitch);
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
  Tile permute(const Operation& op);
  Tile bitcast_narrower(const Operation& op);
  void lookup(const Operation& op) override;

  // emit_gpu_reduce.cc
  Tile reduce(const Operation& op);
  Value* identity(Fn fn, DType dtype);
  Value* fold(Fn fn, DType dtype, Value* sum, Value* next);  // sum may be null
  Tile reduce_block(const Operation& op);
  Tile reduce_mma(const Operation& op);
  Tile reduce_bits(const Operation& op, const WarpReduction& reduction);
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
  void find_filled_scratch();
  void launch_dependents_and_wait();
  bool waits_late() const { return pdl_.wait == Pdl::Wait::kLate; }
  int group_width(const Layout& layout, const Type& type, const Access& access);
  Value* groups_apply(const Access& access, int width);  // i1: vectors of `width` may be used
  Value* inside(const Access& access, const Place& place);
  Value* offset_of(const Access& access, const Place& place);
  Tile load(const Operation& op);
  std::pair<Value*, Value*> empty_and_whole(const Access& access);
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
  void arrive(const Operation& op);
  int64_t arrival_slot_ = -1;  // in shared memory: the count that one thread saw

  // emit_gpu_quad_store.cc
  std::optional<Layout> quad_layout(const Layout& from, const Type& type) const;
  void exchange_words(Tile& words, int lane_bit, size_t register_bit);
  void store_in_quads(const Access& to, const Layout& from, const Layout& quads, const Type& type,
                      const Tile& in);

  // emit_gpu_turned_store.cc
  struct TurnedStore;
  bool is_turned(ValueId id) const;
  void plan_turned_stores();
  void warpgroup_barrier_before(int64_t offset, int64_t bytes, bool write);
  void store_turned(const Access& to, ValueId id);
  Value* piece_place(const TurnedStore& store, int64_t offset, Value* token, Value* byte);
  void write_piece(const TurnedStore& store, DType dtype, int64_t offset,
                   std::span<Value* const> piece);
  void store_piece(const TurnedStore& store, const Access& to, Value* apply, int64_t offset,
                   int block, int first_token);
  bool has_matrix_stores() const;

  // emit_gpu_dots.cc
  void dot(const Operation& op) override;
  void dot_i8(const Operation& op) override;
  void plain_dot(const Operation& op, bool b_transposed);
  void tensor_core_dot(const Operation& op);
  struct Fragments;  // an operand, ready to be read step by step
  void plan_fragments(Fragments& fragments, int depth, int other);
  void write_fragments(const Fragments& fragments, int depth, int other);
  void fill_zero(const Grid& grid, int rows, int first_column, int columns, int first_row = 0);
  Tile left_fragment(const Fragments& a, const Layout& sums, int row, int step);
  Tile right_fragments(const Fragments& b, const Layout& sums, int pair, int step);
  Tile load_matrices(const Grid& grid, Value* row, Value* column, int count, bool transposed);
  void multiply_fragment(DType dtype, std::span<Value* const> left, std::span<Value* const> right,
                         std::span<Value*> sums);

  // emit_gpu_ring_dots.cc
  struct RingProduct;
  void plan_in_flight(const Operation& pipeline);
  void multiply_ring(const Operation& op, const RingDot& operands);
  bool multiplies_async(const Operation& op) const;
  int groups_in_flight(const Region& consume) const;
  void multiply_async(const RingProduct& product);
  bool runs_until_read(const Operation& op) const;
  void find_running();
  void multiply_until_read(const RingProduct& product);
  void finish_running(ValueId id);
  void finish_operands(const Operation& op);
  bool rescales_running(const Operation& op) const;
  void rescale_running(const Operation& op);
  void clear_for_products(const Operation& read);
  void clear_rows(const Operation& read);
  int right_step_bytes(const RingProduct& product);
  std::vector<Tile> left_operands(const RingProduct& product, Value* stage, int step);
  Value* left_stage(const RingProduct& product);
  Value* right_stage(const RingProduct& product);
  Value* moved(Value* descriptor, int64_t bytes);
  void begin_step(const RingProduct& product, const std::vector<Tile>& left, Value* right,
                  Tile& sums);
  void multiply_in_order(const RingProduct& product);
  std::vector<Tile> left_blocks(const RingProduct& product, int step);
  Tile left_words(const RingProduct& product, int block, int step);
  void round_words(const RingProduct& product, Tile& words);
  Value* descriptor(const Operation& read);
  Value* ring_place(const Operation& read, Value* row, Value* column);
  Tile load_ring_matrices(const Operation& read, Value* row, Value* column, int count,
                          bool transposed = false);
  Value* own_block(const RingProduct& product, Value* k, int step);
  Tile computed_words(const RingProduct& product, int column, int count, int step);
  Tile right_words(const RingProduct& product, int column, int count, int step);
  Value* is_before(ValueId extent, Value* row);

  // emit_gpu_lazy.cc
  void plan_lazy(const Region& region);
  bool computes_in_place(const Operation& op);
  void forget_lazy();
  const Operation* lazy_definition(ValueId id) const;
  bool is_paired(const Operation& op) const;
  const Operation* dequantized(const Operation& cast) const;
  llvm::Type* pair_type(DType dtype);
  Value* as_word(Value* pair);
  Value* half_of(Value* word, int which);
  Value* pack_halves(Value* low, Value* high);
  Value* pair_arithmetic(const Operation& op, Value* a, Value* b);
  Value* narrow_pair(DType to, Value* low, Value* high);
  Value* dequantize_pair(Value* low, Value* high);
  Value* word(ValueId id, int r);
  Value* lazy_word(const Operation& op, int r);
  Value* word_operand(const Operation& op, size_t operand, int r);
  Value* element(ValueId id, int r);
  Value* lazy_element(const Operation& op, int r);
  Value* part_of(const Operation& bitcast, Value* whole, int part);
  bool is_weight(const Operation& op) const;
  Value* single_operation(const Operation& op, std::span<Value* const> operands);
  Tile paired(const Operation& op, const std::vector<Tile>& operands);

  // emit_gpu_pipeline.cc, emit_gpu_pipeline_plan.cc
  struct Ring {
    int64_t offset = 0, stage_bytes = 0;
    int stages = 0;
    int box_bytes = 0;  // of a row of a TMA box; 0: bulk loads
    int row_bytes = 0;  // the same, where they are swizzled: of pieces of 128 bytes at most
  };
  struct Steps {  // what pipelines over the same rings share
    std::vector<ValueId> rings;
    int stages = 0;
    int64_t bytes = 0, barriers = 0;
    llvm::AllocaInst *stage = nullptr, *phase = nullptr, *fill = nullptr;
  };
  struct StepHooks {
    // What goes along from step to step besides the carried tiles: made before the first step,
    // taken at the beginning of each and made for the next one at its end.
    std::function<Tile()> first;
    std::function<void(const Tile&)> take;
    std::function<Tile()> next;
    std::function<Value*(Value* counter)> before_step;  // answers the stage, an index
    std::function<void(Value* counter)> after_step;
    std::function<void(std::vector<Tile>& carried)> drain;
  };
  void plan_ring(const Operation& op);
  void plan_tma_load(const Operation& fetch);
  bool meets_in_banks(ValueId ring) const;
  void plan_pipeline(const Operation& op);
  void place_rings();
  void need(ValueId id);
  void plan_copies(const Region& region);
  void make_positions();
  Value* shared_address(int64_t offset);
  Value* instruct(ptx::Instruction instruction, std::initializer_list<Value*> operands);
  Value* full_barrier(const Steps& steps, Value* stage);
  Value* empty_barrier(const Steps& steps, Value* stage);
  void wait_for(Value* barrier, Value* parity);
  void release(const Steps& steps, Value* stage, bool loads_ended, Value* condition = nullptr);
  Value* stage_before(const Steps& steps, Value* stage);
  std::pair<Value*, Value*> following(const Steps& steps, Value* stage, Value* phase);
  void advance(const Steps& steps, Value* stage, Value* phase);
  Value* as_index(Value* stage);
  int copy_threads() const;
  int registers_to_compute() const;
  void start_positions(int phase);
  void prepare_roles();
  void wait_before(const Operation& op);
  Value* descriptor_value(size_t descriptor);
  void run_roles();
  void pipeline_operation(const Operation& op) override;
  Value* stage_pointer(const Ring& ring, Value* stage);
  void fetch(const Operation& op);
  void bulk_load(const Operation& op);
  void tma_load(const Operation& op);
  void produce(const Operation& op);
  void fetch_step(const Region& produce, Value* counter, Value* stage);
  void produce_first(const Operation& op);
  void index_loop(Value* lo, Value* hi, const std::function<void(Value*)>& body);

  // emit_gpu_consume.cc
  struct StepLoop;
  void consume_steps(const Operation& op, const StepHooks& hooks);
  StepLoop begin_steps(const Operation& op);
  std::vector<Tile> carried_words(const Operation& op, std::span<const ValueId> values);
  void carry_into_step(StepLoop& loop);
  void end_step(StepLoop& loop, const StepHooks& hooks);
  void end_steps(const StepLoop& loop);
  Tile in_words(const Tile& tile, ValueId id);
  Tile out_of_words(const Tile& words, ValueId id);
  std::vector<const Operation*> readable_ahead(const Region& consume) const;
  bool reads_all(const Region& consume, const std::vector<const Operation*>& reads) const;
  Tile read_all(const std::vector<const Operation*>& reads, const Region& consume, Value* stage);
  bool loads_from_stage(const Region& consume) const;
  struct StageUse;
  void consume(const Operation& op);
  void load_position(StageUse& use);
  void take_reads(const StageUse& use, const Tile& all);
  void read_within_step(StageUse& use, StepHooks& hooks);
  void read_step_ahead(StageUse& use, StepHooks& hooks);
  void finish_running_on(const StageUse& use, std::vector<Tile>& lasts);
  int read_width(const Operation& op);
  Tile read(const Operation& op);
  Value* swizzled(const Ring& ring, Value* byte);

  // emit_gpu_copies.cc
  void for_chunks(int64_t bytes, const std::function<void(Value*)>& body);
  void bulk_load_by_threads(const Operation& op);
  void tma_load_by_threads(const Operation& op);
  void copy_step(const Operation& op, Value* counter);
  void copy_and_consume(const Operation& op);

  const GpuTarget& target_;
  int threads_;
  std::vector<Layout> layouts_;
  std::vector<const Operation*> definitions_;
  std::vector<std::vector<std::pair<const Operation*, size_t>>> users_;  // and which operand
  std::set<const Operation*> folded_;                 // into the products that use them
  std::set<ValueId> rings_of_tf32_;                   // read by such products only
  std::vector<std::pair<ValueId, int64_t>> scratch_;  // and its bytes
  SharedMemory shared_;
  Value *thread_ = nullptr, *lane_ = nullptr, *warp_ = nullptr;  // i32
  Value* shared_base_ = nullptr;
  std::set<Value*> uniform_;                    // registers that are equal in all threads
  std::map<const Operation*, int64_t> tables_;  // constant tables in shared memory
  // Buffers that the kernel reads, writes, scatters to: what may follow what without a barrier.
  std::vector<bool> read_, written_;
  std::vector<DType> scattered_;
  std::set<ValueId> filled_scratch_;  // scratch that needs no barrier before it is read

  // Where turned sums pass, two in turns, and what a warpgroup still has to wait for there.
  int64_t turned_buffers_[2] = {}, turned_bytes_ = 0;
  int turned_next_ = 0;
  SharedMemory turned_;

  // Computed register by register for the products that use them, and what was computed already.
  std::set<const Operation*> lazy_;
  std::map<const Operation*, std::vector<RegisterOrigin>> origins_;
  std::map<std::pair<ValueId, int>, Value*> elements_, words_;

  // A warpgroup of its own copies what pipelines fetch.
  bool specialised_ = false;
  enum class Role : uint8_t { kBoth, kCopies, kComputes } role_ = Role::kBoth;
  std::map<ValueId, Ring> rings_;
  std::vector<Steps> steps_;
  std::map<const Operation*, size_t> steps_of_;
  bool has_async_products_ = false, has_grouped_products_ = false;
  const Pdl pdl_;
  bool has_waited_ = false;  // by griddepcontrol.wait, on every way to where the emitter stands
  std::vector<bool> waited_around_;
  std::vector<TmaDescriptor> tma_descriptors_;
  std::map<const Operation*, size_t> descriptor_of_;
  std::vector<bool> needed_;                                           // by who copies
  std::map<ValueId, std::pair<const Operation*, size_t>> carried_by_;  // arguments of loops
  bool in_produce_ = false;
  enum class Fetches : uint8_t { kAll, kConstants, kOthers } fetches_ = Fetches::kAll;
  llvm::AllocaInst* begin_ = nullptr;        // i64: the first step that is not on its way
  llvm::AllocaInst* waited_ = nullptr;       // i1: by griddepcontrol.wait
  Value* arrival_ = nullptr;                 // where copies of this step report
  std::set<const Operation*> read_already_;  // in this step
  StagesInFlight stages_in_flight_;          // which groups of products read which stage
  int most_in_flight_ = 0;                   // groups that may be, in this pipeline
  std::set<const Operation*> in_flight_;     // products that may still run when their step ends
  std::function<void()> give_back_;          // the stage of the step before
  struct Running {                           // sums that nobody has looked at yet
    int group = 0;                           // of products, with which they are done
    Tile left;                               // words that these read
  };
  std::map<ValueId, Running> running_;
  int groups_begun_ = 0;
};

}  // namespace tenon::codegen
