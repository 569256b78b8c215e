// The ranks of a job as kernels/ sees them: who they are, and calls that they make together.
// distributed/ is behind it.
#pragma once

#include <memory>
#include <string>

#include "base/dtype.h"
#include "base/support.h"
#include "graph_partitioner/ir/collectives.h"
#include "kernels/planning/library_call.h"

namespace tenon::kernels {

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual std::string engine() const = 0;  // that moves the bytes: "shm", "nccl 2.28.9"

  virtual Support supports(const ir::Collective& collective, DType dtype) const = 0;
  // Buffers of the call: what goes in, what comes out. Numbers: elements that go in, elements of
  // one row (all dims but the first).
  virtual std::shared_ptr<const LibraryCall> make_call(const ir::Collective& collective,
                                                       DType dtype) const = 0;
};

}  // namespace tenon::kernels
