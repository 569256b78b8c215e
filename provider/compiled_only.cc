#include "provider/compiled_only.h"

#include "base/error.h"

namespace tenon::provider {
namespace {

class CompiledOnly final : public kernels::Executable {
 public:
  explicit CompiledOnly(kernels::Program program)
      : fusions_(std::move(program.fusions)),
        kernels_(std::move(program.kernels)),
        phases_(std::move(program.phases)),
        weight_bytes_(program.weight_bytes),
        packed_bytes_(program.packed_bytes) {}

  void run(kernels::RunContext&) override {
    throw UserError(
        "this session was made to compile a context model and cannot run: open the context model");
  }
  const std::vector<kernels::FusionReport>& fusions() const override { return fusions_; }
  const std::vector<kernels::KernelReport>& kernels() const override { return kernels_; }
  size_t weight_bytes() const override { return weight_bytes_; }
  size_t packed_bytes() const override { return packed_bytes_; }
  const std::vector<kernels::BuildPhase>& phases() const override { return phases_; }

 private:
  const std::vector<kernels::FusionReport> fusions_;
  const std::vector<kernels::KernelReport> kernels_;
  const std::vector<kernels::BuildPhase> phases_;
  const size_t weight_bytes_, packed_bytes_;
};

}  // namespace

std::unique_ptr<kernels::Executable> compiled_only(kernels::Program program) {
  return std::make_unique<CompiledOnly>(std::move(program));
}

}  // namespace tenon::provider
