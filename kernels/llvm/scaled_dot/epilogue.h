// What happens to accumulators, a row or a tile of rows at a time: alpha, bias, the fusion's body,
// rounding, the store.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/scaled_dot/problem.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {

// One of the epilogues of a kernel that computes several products.
struct EpilogueRole {
  std::string suffix = {};           // of its parameters' names
  ir::ValueId given = ir::kNoValue;  // an operand that is in registers: another product's result
  bool stores = true;                // false: its result is such an operand
};

class Epilogue {
 public:
  static Support supports(const ir::Graph& graph, const ir::Node& node,
                          const ScaledDotProblem& problem);

  // Adds the operands' buffers and dims to the kernel's parameters. A constant alpha is data, not
  // code, so that layers that differ in it share a kernel: it goes into lowered.packed.
  // `shape` of the accumulators: {columns}, or {rows, columns}.
  Epilogue(LaunchWriter& writer, const ir::Graph& graph, const ir::Node& node,
           const ScaledDotProblem& problem, std::vector<int> shape, Lowered& lowered,
           EpilogueRole role = {});

  // Scalars that every row uses; called once, at the top of the kernel.
  void begin();
  // Where the accumulators belong: rows count over all batches. Those at or past the extents
  // (kNone: none) are not stored.
  struct Place {
    codegen::ValueId row, column;
    codegen::ValueId columns_left = codegen::kNone, rows_left = codegen::kNone;
  };
  // Loads what the next `emit`, of the same place, needs besides accumulators.
  void ask(const Place& place);
  // `given`: the operand of that role, as numbers.
  void emit(const Place& place, Tile accumulators, Tile given = codegen::kNone);
  // What would be stored, as numbers.
  Tile result(const Place& place, Tile accumulators);

 private:
  struct Result {
    Tile number, code = codegen::kNone;  // kNone: the number is yet to be quantised
  };

  // An operand that broadcasts to the result: row-major strides, 0 where it repeats.
  struct Operand {
    codegen::ValueId buffer = codegen::kNone;
    DType dtype{};
    std::vector<Dim> strides;     // one per result axis
    bool follows_rows = false;    // same leading dims as the result: the row number is enough
    bool repeats_rows = false;    // the same for every row
    Tile asked = codegen::kNone;  // codes that are there already
  };

  void declare_alpha(Lowered& lowered);
  Operand declare_operand(const std::string& name, ir::ValueId value);
  bool is_row() const { return shape_.size() == 1; }
  Tile load(Operand& operand, const Place& place);
  Tile load_codes(const Operand& operand, const Place& place);
  Tile load_row(const Operand& operand, const Place& place);
  Tile load_rows(const Operand& operand, const Place& place);
  Tile gather_rows(const Operand& operand, const Place& place);
  codegen::ValueId row_offset(const Operand& operand, codegen::ValueId row);
  std::vector<Result> results(const Place& place, Tile accumulators, Tile given);
  std::vector<Result> emit_body(const std::vector<Tile>& inputs);
  void store(size_t output, const Place& place, Tile codes);

  LaunchWriter& writer_;
  codegen::Builder& b_;
  const ir::Graph& graph_;
  const ir::Node& node_;
  const ScaledDotProblem& problem_;
  Shape result_;  // batch…, m, n
  std::vector<int> shape_;
  EpilogueRole role_;
  codegen::ValueId alpha_buffer_ = codegen::kNone;  // kNone: 1
  DType alpha_type_ = DType::kF32;
  float alpha_factor_ = 1.0f;    // on top of what the buffer holds
  Tile alpha_ = codegen::kNone;  // f32 of the accumulators' shape; kNone: 1
  std::optional<Operand> bias_;
  std::vector<std::optional<Operand>> extra_;  // nothing: given
  std::vector<codegen::ValueId> outputs_;
};

}  // namespace tenon::kernels
