#include "provider/compiled_only.h"

#include "base/error.h"

namespace tenon::provider {
namespace {

class CompiledOnly final : public kernels::Executable {
 public:
  CompiledOnly(kernels::Program program, std::string_view why_not_run)
      : why_not_run_(why_not_run),
        fusions_(std::move(program.fusions)),
        kernels_(std::move(program.kernels)),
        phases_(std::move(program.phases)),
        weight_bytes_(program.weight_bytes),
        packed_bytes_(program.packed_bytes) {}

  void run(kernels::RunContext&) override { throw UserError(why_not_run_); }
  const std::vector<kernels::FusionReport>& fusions() const override { return fusions_; }
  const std::vector<kernels::KernelReport>& kernels() const override { return kernels_; }
  size_t weight_bytes() const override { return weight_bytes_; }
  size_t packed_bytes() const override { return packed_bytes_; }
  const std::vector<kernels::BuildPhase>& phases() const override { return phases_; }

 private:
  const std::string why_not_run_;
  const std::vector<kernels::FusionReport> fusions_;
  const std::vector<kernels::KernelReport> kernels_;
  const std::vector<kernels::BuildPhase> phases_;
  const size_t weight_bytes_, packed_bytes_;
};

}  // namespace

std::unique_ptr<kernels::Executable> compiled_only(kernels::Program program,
                                                   std::string_view why_not_run) {
  return std::make_unique<CompiledOnly>(std::move(program), why_not_run);
}

}  // namespace tenon::provider
