#include "codegen/tile/content.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "codegen/tile/text.h"
#include "tests/codegen/gpu_samples.h"

namespace tenon::codegen {
namespace {

std::vector<Kernel> sample_kernels() {
  std::vector<Kernel> kernels;
  for (const auto& samples : {representative_samples(), operation_samples(), pipeline_samples()}) {
    for (const Sample& sample : samples) kernels.push_back(sample.kernel);
  }
  return kernels;
}

std::string text_without_name(const Kernel& kernel) {
  const std::string text = print(kernel);
  return text.substr(text.find('('));
}

TEST(ContentTest, TellsKernelsApartAsTheirTextsDo) {
  std::map<std::string, Digest> of_texts;
  std::map<Digest, std::string> of_contents;
  for (const Kernel& kernel : sample_kernels()) {
    const std::string text = text_without_name(kernel);
    const Digest content = content_of(kernel);
    EXPECT_EQ(of_texts.try_emplace(text, content).first->second, content) << text;
    EXPECT_EQ(of_contents.try_emplace(content, text).first->second, text);
  }
  EXPECT_GT(of_contents.size(), 100u);
}

// Values have other numbers there, and attributes that mean nothing other values.
TEST(ContentTest, AKernelReadFromItsTextIsTheSame) {
  for (const Kernel& kernel : sample_kernels()) {
    const std::string text = print(kernel);
    EXPECT_EQ(content_of(parse(text)), content_of(kernel)) << text;
  }
}

TEST(ContentTest, TheNameDoesNotCount) {
  Kernel kernel = sample_kernels().front();
  const Digest content = content_of(kernel);
  kernel.name += "_1";
  EXPECT_EQ(content_of(kernel), content);
}

constexpr std::string_view kKernel =
    R"(kernel @k(%x: constant aligned buffer<f32>, %y: own buffer<f32>, %n: index) pdl ctas_per_sm 2 {
  %0 = task : index
  %1 = index.mul %0, 16 : index
  %2 = constant 0.0 : f32[16]
  %3 = constant [1.0, -0.0, nan, 2.0] : f32[4]
  %4 = constant 3 : i32[16]
  %5 = load %x[%1] strides(1) extents(%n) fill 0.5 : f32[16]
  %6 = load %x[%1] strides(1) : f32[16]
  %7 = quantize_f8e8m0 %5 saturate up : u8[16]
  %8 = slice %6 offsets(4) : f32[4]
  %9 = add %8, %3 : f32[4]
  %10 = reduce.max %6 axis 0 : f32[]
  %11 = iota axis 0 : i32[16]
  %12 = gather %x[%1], %11, _ : f32[16]
  %13 = reshape %6 : f32[4,4]
  %14 = dot %13, %13, %13 tf32 : f32[4,4]
  %15 = for %16 = 0 to %n step 4 carry(%17 = %9) {
    %18 = add %17, %3 : f32[4]
    yield %18
  } : f32[4]
  store %y[%0], %15 strides(1) : f32[4]
}
)";

TEST(ContentTest, EveryWordCounts) {
  const std::string text(kKernel);
  ASSERT_EQ(print(parse(text)), text);
  const Digest content = content_of(parse(text));
  const std::pair<std::string, std::string> changes[] = {
      {"constant aligned buffer<f32>", "aligned buffer<f32>"},
      {"constant aligned buffer<f32>", "constant buffer<f32>"},
      {"own buffer<f32>", "buffer<f32>"},
      {"%n", "%m"},
      {"pdl ", ""},
      {"ctas_per_sm 2", "ctas_per_sm 1"},
      {"%0, 16 :", "%0, 17 :"},
      {"index.mul", "index.add"},
      {"constant 0.0", "constant -0.0"},
      {"[1.0, -0.0, nan, 2.0]", "[1.0, 0.0, nan, 2.0]"},
      {"constant 3 :", "constant -3 :"},
      {"fill 0.5", "fill nan"},
      {"extents(%n) fill 0.5", "extents(16) fill 0.5"},
      {"saturate up", "up"},
      {"saturate up", "saturate down"},
      {"offsets(4)", "offsets(5)"},
      {"add %8, %3", "add %3, %8"},
      {"add %8, %3", "mul %8, %3"},
      {"reduce.max", "reduce.min"},
      {" tf32", ""},
      {"step 4", "step 8"},
      {"store %y[%0], %15", "store %y[%1], %15"},
  };
  std::map<Digest, std::string> seen = {{content, "as it was"}};
  for (const auto& [from, to] : changes) {
    std::string changed = text;
    for (size_t at = 0; (at = changed.find(from, at)) != std::string::npos; at += to.size()) {
      changed.replace(at, from.size(), to);
    }
    const auto [known, is_new] = seen.try_emplace(content_of(parse(changed)), from + " -> " + to);
    EXPECT_TRUE(is_new) << from << " -> " << to << " is " << known->second;
  }
}

}  // namespace
}  // namespace tenon::codegen
