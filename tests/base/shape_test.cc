#include "base/shape.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tenon {
namespace {

Shape shape(std::string_view text) { return parse_shape(text); }

TEST(Shape, CountsAndStrides) {
  EXPECT_EQ(element_count(shape("[b,s,384]")).text(), "384*b*s");
  EXPECT_EQ(element_count({}).value(), 1);
  EXPECT_EQ(text(contiguous_strides(shape("[b,s,12,32]"))), "[384*s,384,32,1]");
  EXPECT_EQ(text(contiguous_strides(shape("[b,5,0]"))), "[5,1,1]");
  EXPECT_EQ(text(contiguous_strides(shape("[0,b,4]"))), "[4*b,4,1]");
}

TEST(Shape, BroadcastsFromTheRight) {
  EXPECT_EQ(text(*broadcast_shapes(shape("[b,1,384]"), shape("[s,1]"))), "[b,s,384]");
  EXPECT_EQ(text(*broadcast_shapes(shape("[b]"), shape("[7]"))), "[7]");
  EXPECT_EQ(text(*broadcast_shapes(shape("[]"), shape("[2,0]"))), "[2,0]");
  EXPECT_EQ(broadcast_shapes(shape("[2,3]"), shape("[4]")), std::nullopt);
}

TEST(Shape, StaticShapesAreNumbers) {
  EXPECT_TRUE(is_static(shape("[2,3]")) && !is_static(shape("[2,n]")));
  EXPECT_EQ(static_dims(make_shape({2, 3})), (std::vector<int64_t>{2, 3}));
  EXPECT_THROW(static_dims(shape("[n]")), InternalError);
}

TEST(Shape, TextParsesBack) {
  for (const char* example : {"[]", "[1]", "[b,2*s+1,'odd, name',floordiv(s,16)]"}) {
    EXPECT_EQ(text(shape(example)), example);
  }
  EXPECT_THROW(parse_shape("[1,"), UserError);
  EXPECT_THROW(parse_shape("[1] x"), UserError);
}

}  // namespace
}  // namespace tenon
