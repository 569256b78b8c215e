// The exact remainder of floats as a function of the module: LLVM's own for GPUs is not exact.
#pragma once

namespace llvm {
class Function;
class Module;
class Type;
}  // namespace llvm

namespace tenon::codegen {

// `real` is float or double. The result has the sign of the dividend, as fmod's.
llvm::Function* remainder_function(llvm::Module& module, llvm::Type* real);

}  // namespace tenon::codegen
