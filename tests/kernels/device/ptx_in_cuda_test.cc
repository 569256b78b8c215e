#include "kernels/device/ptx_in_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tenon::device {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kKernel = R"(// a comment
.version 8.0
.target sm_90a
.address_size 64

	// .globl	k
.extern .shared .align 1024 .b8 k_shared[];

.visible .entry k(
	.param .u64 k_param_0,
	.param .align 64 .b8 k_param_1[128]
)
.reqntid 384, 1, 1
.minnctapersm 1
{
	.reg .b32 	%r<3>;

	// %bb.0:
	mov.u32 	%r1, %tid.x;
$L__BB0_1:
	ret;
}
)";

TEST(PtxInCudaTest, OneKernelBecomesOneFunction) {
  EXPECT_EQ(cuda_source_of(kKernel), R"(extern __shared__ __align__(1024) unsigned char k_shared[];
struct alignas(64) Bytes1 { char bytes[128]; };
extern "C" __global__ void __launch_bounds__(384, 1) k(unsigned long long p0, const __grid_constant__ Bytes1 p1) {
asm volatile(
"{\n"
".reg .b32 	%%r<3>;\n"
"mov.u32 	%%r1, %%tid.x;\n"
"$L__BB0_1:\n"
"ret;\n"
"}\n" : : "l"(k_shared));
}
)");
}

std::string with(std::string_view what, std::string_view instead) {
  std::string text(kKernel);
  return text.replace(text.find(what), what.size(), instead);
}

TEST(PtxInCudaTest, LimitsOnThreadsAndRegisters) {
  EXPECT_THAT(cuda_source_of(with(".minnctapersm 1", ".maxnreg 96")),
              HasSubstr("void __launch_bounds__(384) __maxnreg__(96) k("));
  EXPECT_THAT(cuda_source_of(with(".reqntid 384, 1, 1\n.minnctapersm 1\n", "")),
              HasSubstr("void k("));
}

TEST(PtxInCudaTest, QuotesStayInside) {
  EXPECT_THAT(cuda_source_of(with("ret;", ".pragma \"nounroll\";")),
              HasSubstr(R"(".pragma \"nounroll\";\n")"));
}

TEST(PtxInCudaTest, WhatItDoesNotKnowIsRefused) {
  for (const auto& [what, instead] : std::initializer_list<std::pair<const char*, const char*>>{
           {".extern .shared", ".global .align 4 .b8 table[4];\n.extern .shared"},
           {".u64 k_param_0", ".u32 k_param_0"},
           {".u64 k_param_0", ".u64 other"},
           {".minnctapersm 1", ".reqnctapercluster 2"},
           {"\tret;\n}\n", "\tret;\n"},
           {"\tret;\n}\n", "\tret;\n}\n.visible .entry l(\n)\n{\n}\n"},
       }) {
    SCOPED_TRACE(instead);
    EXPECT_THROW(cuda_source_of(with(what, instead)), UserError);
  }
  for (size_t length = 0; length + 2 < kKernel.size(); ++length) {
    EXPECT_THROW(cuda_source_of(kKernel.substr(0, length)), UserError) << length;
  }
}

}  // namespace
}  // namespace tenon::device
