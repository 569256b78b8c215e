// What was estimated of a kernel against what the assembler reports of it.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "codegen/estimate.h"
#include "tests/codegen/assembler.h"

namespace tenon::codegen {

inline void expect_estimated(const std::string& what, const Kernel& kernel, int threads,
                             const GpuTarget& target, const GpuCode& code,
                             const Assembled& assembled) {
  const GpuEstimate estimate = estimate_gpu(kernel, threads, target);
  // Where a CTA deals its registers anew the assembler only tells what all threads begin with.
  const bool dealt_anew = has(code.ptx, "setmaxnreg");
  printf("%-58s %-7s registers %3d%s <= %3d (%3d of tiles) of %3d, %6lld bytes shared\n",
         what.c_str(), target.arch.c_str(), assembled.registers(), dealt_anew ? "?" : " ",
         estimate.registers, estimate.live_registers, estimate.register_limit,
         static_cast<long long>(code.shared_bytes));
  EXPECT_EQ(estimate.shared_bytes, code.shared_bytes) << what;
  EXPECT_FALSE(has(assembled.report, "[0-9] bytes smem")) << what << "\n" << assembled.report;
  const bool fits = estimate.fits().ok;
  // With many registers left the assembler may take more than it needs.
  EXPECT_TRUE(dealt_anew || fits || assembled.registers() <= estimate.registers) << what;
  if (fits) {
    EXPECT_TRUE(assembled.keeps_to_registers()) << what << "\n" << assembled.report;
  }
}

}  // namespace tenon::codegen
