#include "graph_partitioner/ir/input_facts.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "graph_partitioner/ir/extract.h"
#include "graph_partitioner/ir/text.h"

namespace tenon::ir {
namespace {

// The inputs of the part with these sources, told what `text` knows, one line each.
std::string told(std::string_view text, const std::vector<int>& sources) {
  const Graph whole = parse(text);
  Graph part = extract(whole, sources);
  tell_inputs(part, facts_of_inputs(part, whole));
  std::string lines;
  const std::string printed = print(part);
  for (size_t at = printed.find("input "); at != std::string::npos;
       at = printed.find("input ", at + 1)) {
    lines += printed.substr(at + 6, printed.find('\n', at) - at - 5);
  }
  return lines;
}

TEST(InputFacts, SizesThatTheInputsTellStayExpressions) {
  EXPECT_EQ(told(R"(graph main {
    input %x: f32[batch,seq,64]
    %s: i64[3] elements(batch,seq,64) = Made(%x) sources=[0]
    %v: f32[batch*seq,64] = Other(%x) sources=[1]
    %z: f32[batch,seq,64] = Reshape(%v, %s) sources=[2]
    %y: f32[batch,seq,64] = Add(%z, %x) sources=[3]
    output %y
  })",
                 {2, 3}),
            "%v: f32[batch*seq,64]\n"
            "%s: i64[3] elements(batch,seq,64)\n"
            "%x: f32[batch,seq,64]\n");
}

TEST(InputFacts, EqualSizesThatNobodyTellsAreOneSymbol) {
  EXPECT_EQ(told(R"(graph main {
    input %x: f32[batch,seq,64]
    %v: f32[batch*seq,64] = Other(%x) sources=[0]
    %w: f32[batch*seq,2*seq] = Other(%x) sources=[1]
    %n: i64[] elements(batch*seq) = Made(%x) sources=[2]
    %y: f32[batch*seq,64] = Mixed(%v, %w, %n) sources=[3]
    output %y
  })",
                 {3}),
            "%v: f32[':batch*seq',64]\n"
            "%w: f32[':batch*seq',2*seq]\n"
            "%n: i64[] elements(':batch*seq')\n");
}

TEST(InputFacts, SizesOverFunctionsThatOneSizeTellsStayExpressions) {
  EXPECT_EQ(told(R"(graph main {
    input %x: f32[batch,3,height,width]
    %v: f32[1,64,floordiv(height,14),2*floordiv(width,14)] = Other(%x) sources=[0]
    %w: f32[batch,floordiv(height,14)*floordiv(width,14)+1,height] = Other(%x) sources=[1]
    %u: f32[batch*width,floordiv(width,14)+batch] = Other(%x) sources=[2]
    %y: f32[*] = Mixed(%v, %w, %u) sources=[3]
    output %y
  })",
                 {3}),
            "%v: f32[1,64,floordiv(height,14),2*':floordiv(width,14)']\n"
            "%w: f32[batch,':floordiv(width,14)'*floordiv(height,14)+1,height]\n"
            "%u: f32[':batch*width',':floordiv(width,14)'+batch]\n");
}

TEST(InputFacts, WhatTheWholeGraphDoesNotKnowStaysUnknown) {
  EXPECT_EQ(told(R"(graph main {
    input %x: f32[n]
    %v: f32[*] = Other(%x) sources=[0]
    %y: f32[*] = Relu(%v) sources=[1]
    output %y
  })",
                 {1}),
            "%v: f32[*]\n");
}

TEST(InputFacts, APartThatWasNotClaimedIsAnError) {
  Graph part = parse(R"(graph main {
    input %x: f32[n]
    %y: f32[n] = Relu(%x) sources=[0]
    output %y
  })");
  EXPECT_THROW(tell_inputs(part, {}), InternalError);
}

}  // namespace
}  // namespace tenon::ir
