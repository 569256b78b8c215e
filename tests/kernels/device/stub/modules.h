// Modules of the stub: the tile programs that PTX carries, which it interprets.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/compile.h"
#include "tests/kernels/device/stub/world.h"

namespace tenon::stub {

// A tile program ready to run here.
struct Program {
  codegen::Kernel kernel;
  std::vector<bool> written;  // per parameter: the kernel stores to it
};

struct Module {
  int device = 0;
  unsigned threads = 0;             // that a CTA must have; 0: any number
  std::vector<size_t> descriptors;  // bytes of the parameters behind those of the tile program
  std::shared_ptr<const Program> program;
};

struct Function {
  const Module* module = nullptr;
  std::shared_ptr<const Program> program;
  size_t dynamic_shared_bytes = 48 << 10;
};

// Equal text is read once per process. Throws UserError where the text carries no tile program.
std::shared_ptr<const Program> program_of(const char* ptx);
unsigned required_threads(std::string_view ptx);

struct LaunchShape {
  unsigned grid = 0, block = 0, shared_bytes = 0, cluster = 1;
  bool pdl = false;  // launched with programmatic stream serialization
};
// Checks the launch against the signature and makes it work that can be done and done again.
Result prepare(World& world, const Function& function, const LaunchShape& shape, void** arguments,
               Work& work);

}  // namespace tenon::stub
