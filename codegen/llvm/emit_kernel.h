// What the emitters of all targets share: regions, control flow, indices and the arithmetic of
// single elements. A target decides how a tile lies in LLVM values ("pieces": vectors on the host,
// one register after the other on a GPU); arithmetic goes piece by piece either way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codegen/tile/ir.h"

namespace llvm {
class AllocaInst;
class Function;
class IRBuilderBase;
class Module;
class Type;
class Value;
}  // namespace llvm

namespace tenon::codegen {

class KernelEmitter {
 protected:
  using Value = llvm::Value;
  using Tile = std::vector<llvm::Value*>;

  KernelEmitter(const Kernel& kernel, llvm::Module& module, llvm::IRBuilderBase& ir);
  virtual ~KernelEmitter() = default;

  // emit_kernel.cc: regions, control flow, indices
  void region(const Region& region);
  void operation(const Operation& op);
  void index_operation(const Operation& op);
  void product(const Operation& op);
  virtual void control_operation(const Operation& op);
  void for_loop(const Operation& op);
  void if_else(const Operation& op);
  Value* extremum_of_indices(bool smallest, Value* a, Value* b);
  std::vector<ValueId> yielded(const Region& region) const;

  const Type& type(ValueId id) const { return kernel_.types[id]; }
  const Tile& tile(ValueId id) const { return values_[id]; }
  Value* single(ValueId id) const { return values_[id][0]; }

  // False: left out where it stands.
  virtual bool wanted(const Operation&) { return true; }
  virtual void before_region(const Region&) {}
  virtual void after_region(const Region&) {}
  // Code that runs after other code than what stands before it in the text begins here.
  virtual void enter_block() {}
  // The pieces of `value` as those of `as` lie.
  virtual Tile carried(ValueId value, ValueId /*as*/) { return tile(value); }
  virtual void make_tile(const Operation& op) = 0;
  virtual void elementwise(const Operation& op) = 0;
  virtual void shape_operation(const Operation& op) = 0;
  virtual void lookup(const Operation& op) = 0;
  virtual void dot(const Operation& op) = 0;
  virtual void dot_i8(const Operation& op) = 0;
  virtual void tile_dot(const Operation& op);  // the host's alone
  virtual void memory_operation(const Operation& op) = 0;
  virtual void pipeline_operation(const Operation& op);

  // emit_elementwise.cc: of scalars or vectors
  llvm::Type* element_type(DType dtype) const;  // in registers: bool is i1, f16 and bf16 are i16
  llvm::Type* memory_type(DType dtype) const;   // in memory: bool is a byte
  Value* from_memory(DType dtype, Value* loaded);
  Value* to_memory(DType dtype, Value* value);
  bool is_constant(Value* value, int64_t expected) const;
  Value* index_constant(int64_t value);
  Value* constant_element(DType dtype, double number, int64_t integer);
  Value* element_operation(const Operation& op, std::span<Value* const> operands);
  Value* unary(Fn fn, DType dtype, Value* x);
  Value* binary(Fn fn, DType dtype, Value* a, Value* b);
  Value* divide(Fn fn, DType dtype, Value* a, Value* b);
  Value* shift(Fn fn, DType dtype, Value* a, Value* amount);
  Value* extremum(Fn fn, DType dtype, Value* a, Value* b);
  Value* compare(Fn fn, DType dtype, Value* a, Value* b);
  // What no instruction computes.
  virtual Value* real_function(Fn fn, std::span<Value* const> arguments) = 0;
  virtual Value* float_remainder(Value* a, Value* b);
  // Of indices, which are not negative.
  virtual Value* quotient(Value* a, Value* b);
  virtual Value* remainder(Value* a, Value* b);
  virtual Value* reciprocal(Value* x);           // within 1 ULP
  virtual Value* join_bits(Value* a, Value* b);  // a or b

  // emit_casts.cc
  Value* cast(DType from, DType to, Value* x);
  Value* float_to_float(DType from, DType to, Value* x);
  Value* f64_to_f32_odd(Value* x);
  Value* float_to_integer(DType from, DType to, Value* x);
  virtual Value* f32_to_bf16(Value* x);
  virtual Value* truncate_to(int bits, Value* x);

  const Kernel& kernel_;
  llvm::Module& module_;
  llvm::IRBuilderBase& ir_;
  llvm::Function* function_ = nullptr;
  Value* task_ = nullptr;
  std::vector<Tile> values_;
};

}  // namespace tenon::codegen
