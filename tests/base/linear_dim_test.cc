#include "base/linear_dim.h"

#include <gtest/gtest.h>

#include <tuple>

namespace tenon {
namespace {

TEST(LinearDim, IsAFactorTimesOneSymbolAndASummand) {
  for (const auto& [text, symbol, factor, summand] :
       {std::tuple{"n", "n", 1, 0}, std::tuple{"3*n", "n", 3, 0}, std::tuple{"2*n-5", "n", 2, -5},
        std::tuple{"4-n", "n", -1, 4}}) {
    const auto form = linear_form(Dim::parse(text));
    ASSERT_TRUE(form) << text;
    EXPECT_EQ(form->symbol, symbol);
    EXPECT_EQ(form->factor, factor);
    EXPECT_EQ(form->summand, summand);
  }
}

TEST(LinearDim, OtherDimsHaveNoSuchForm) {
  for (const char* text : {"7", "n*m", "n+m", "n*n", "floordiv(n,2)", "min(n,8)",
                           "broadcast(n-1,n)", "broadcast(floordiv(n,2)-1,floordiv(n,3))"}) {
    EXPECT_FALSE(linear_form(Dim::parse(text))) << text;
  }
}

}  // namespace
}  // namespace tenon
