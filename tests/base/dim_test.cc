#include <functional>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/shape.h"

namespace tenon {
namespace {

const Dim b = Dim::symbol("b"), s = Dim::symbol("s"), t = Dim::symbol("t");

TEST(Dim, EqualPolynomialsAreEqual) {
  EXPECT_EQ(s * 12 * 32, 384 * s);
  EXPECT_EQ((b + s) * (b - s), b * b - s * s);
  EXPECT_EQ(b + s - b, s);
  EXPECT_EQ((s - s), Dim(0));
  EXPECT_FALSE(b == s);
  EXPECT_FALSE(s == Dim(3));
}

TEST(Dim, ExactDivisionsCancel) {
  EXPECT_EQ(floor_div(b * s * 384, 384), b * s);
  EXPECT_EQ(floor_div(b * s * 384, b * s), Dim(384));
  EXPECT_EQ(floor_div(b * s * 384 + 2 * b * b, 2 * b), 192 * s + b);
  EXPECT_EQ(floor_div((s + t) * 64 * b, s + t), 64 * b);
  EXPECT_EQ(ceil_div(32 * s, 16), 2 * s);
  EXPECT_EQ(ceil_div(b * s, s), b);
  EXPECT_EQ(mod(b * s * 384, 16), Dim(0));
  EXPECT_EQ(mod(16 * s + 5, 16), Dim(5));
}

TEST(Dim, InexactDivisionsHaveOneSpelling) {
  EXPECT_EQ(floor_div(6 * s, 4).text(), "floordiv(s,2)+s");
  EXPECT_EQ(floor_div(s + 33, 16).text(), "floordiv(s+1,16)+2");
  EXPECT_EQ(floor_div(s - 1, 16).text(), "floordiv(s+15,16)-1");
  EXPECT_EQ(ceil_div(s, 16), floor_div(s + 15, 16));
  EXPECT_EQ(floor_div(floor_div(s, 4), 2), floor_div(s, 8));
  EXPECT_EQ(floor_div(b, s).text(), "floordiv(b,s)");
  EXPECT_EQ(floor_div(b + 5 * s, s).text(), "floordiv(b,s)+5");
}

TEST(Dim, ComparisonsFoldWhereSizesDecide) {
  EXPECT_EQ(min(s, s + 1), s);
  EXPECT_EQ(max(s, s + 1), s + 1);
  EXPECT_EQ(min(s, 0), Dim(0));
  EXPECT_EQ(max(0, s), s);
  EXPECT_EQ(min(s, std::numeric_limits<int64_t>::max()), s);
  EXPECT_EQ(max(s, std::numeric_limits<int64_t>::min()), s);
  EXPECT_EQ(min(2 * s, s), s);
  EXPECT_EQ(min(s, 5).text(), "min(5,s)");
  EXPECT_EQ(min(5, s), min(s, 5));
  EXPECT_EQ(min(min(s, 5), 3), min(s, 3));
  EXPECT_EQ(max(max(s, t), s), max(t, s));
  EXPECT_EQ(max(0, min(s, 5)), min(s, 5));
}

TEST(Dim, TheSmallestNumberIsReadBack) {
  const Dim least = std::numeric_limits<int64_t>::min();
  for (const Dim& dim : {least, least * s, s + least, b + s * least}) {
    EXPECT_EQ(Dim::parse(dim.text()), dim) << dim.text();
  }
}

TEST(Dim, BroadcastFoldsWhereDecidable) {
  EXPECT_EQ(broadcast(s, 1), s);
  EXPECT_EQ(broadcast(s, s), s);
  EXPECT_EQ(broadcast(5, s), Dim(5));
  EXPECT_EQ(broadcast(0, s), Dim(0));
  EXPECT_EQ(broadcast(broadcast(s, t), s), broadcast(t, s));
  EXPECT_EQ(broadcast(broadcast(s, t), 7), Dim(7));
  EXPECT_THROW(broadcast(3, 4), UserError);
  // Rows of a table, as many as there are, against all of s: another size fails the Run.
  EXPECT_EQ(broadcast(min(512, s), s), s);
  EXPECT_EQ(broadcast(s, min(1, s)), s);
  EXPECT_EQ(broadcast(broadcast(t, min(512, s)), s), broadcast(s, t));
  EXPECT_EQ(broadcast(min(t + 1, s), s), s);
  // Of no rows (t of 0) one is stretched to none.
  EXPECT_EQ(broadcast(min(t, s), s).text(), "broadcast(min(s,t),s)");
  EXPECT_EQ(broadcast(min(512, t), s).text(), "broadcast(min(512,t),s)");
}

TEST(Dim, StridesVanishWhereADimTurnsOutToBeOne) {
  EXPECT_EQ(stride_unless_one(1, 7), Dim(0));
  EXPECT_EQ(stride_unless_one(3, 7), Dim(7));
  const Dim stride = stride_unless_one(s, 4 * t);
  const auto with_s = [](int64_t value) {
    return [value](std::string_view symbol) { return symbol == "s" ? value : 10; };
  };
  EXPECT_EQ(stride.evaluate(with_s(1)), 0);
  EXPECT_EQ(stride.evaluate(with_s(2)), 40);
  EXPECT_EQ(stride.evaluate(with_s(0)), 40);
}

TEST(Dim, EvaluatesAndReportsWhatIsWrong) {
  const auto lookup = [](std::string_view symbol) -> int64_t {
    if (symbol == "b") return 3;
    if (symbol == "s") return 7;
    throw InternalError("unknown symbol");
  };
  EXPECT_EQ((2 * b * s + 1).evaluate(lookup), 43);
  EXPECT_EQ(floor_div(s, b).evaluate(lookup), 2);
  EXPECT_EQ(ceil_div(s, b).evaluate(lookup), 3);
  EXPECT_EQ(mod(b - s, 3).evaluate(lookup), 2);
  EXPECT_THROW(t.evaluate(lookup), InternalError);
  EXPECT_THROW(broadcast(b, s).evaluate(lookup), UserError);
  EXPECT_THROW(floor_div(s, b - 3).evaluate(lookup), UserError);
  const auto huge = [](std::string_view) { return int64_t{1} << 40; };
  EXPECT_THROW((b * s).evaluate(huge), UserError);
  const Dim largest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ceil_div(s, largest).evaluate(lookup), 1);
  EXPECT_EQ(ceil_div(0 - s, largest).evaluate(lookup), 0);
}

TEST(Dim, SubstitutesAndFoldsAgain) {
  const Dim dim = floor_div(b * s, 16) + max(t, s);
  const auto fix = [](std::string_view symbol) -> std::optional<Dim> {
    if (symbol == "s") return Dim(32);
    return std::nullopt;
  };
  EXPECT_EQ(dim.substitute(fix).text(), "2*b+max(32,t)");
  std::vector<std::string> symbols;
  dim.collect_symbols(symbols);
  EXPECT_EQ(symbols.size(), 3u);
}

TEST(Dim, TextIsReadable) {
  EXPECT_EQ((2 * b * s + 1).text(), "2*b*s+1");
  EXPECT_EQ((Dim(1) - s).text(), "-s+1");
  EXPECT_EQ(Dim(-4).text(), "-4");
  EXPECT_EQ(Dim::symbol("past + 1").text(), "'past + 1'");
  EXPECT_EQ(Dim::symbol("min").text(), "'min'");
  EXPECT_EQ(Dim::symbol("it's").text(), "'it\\'s'");
  EXPECT_THROW(Dim::parse("2*"), UserError);
  EXPECT_THROW(Dim::parse("min(1)"), UserError);
  EXPECT_THROW(Dim::parse("99999999999999999999"), UserError);
  EXPECT_THROW(Dim::parse("-9223372036854775809"), UserError);
  EXPECT_THROW(Dim::parse("'open"), UserError);
  EXPECT_THROW(Dim::parse(""), UserError);
}

// Product of `count` sums x0+y0, x1+y1, …
Dim product_of_sums(int count) {
  Dim product = 1;
  for (int i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    product = product * (Dim::symbol("x" + number) + Dim::symbol("y" + number));
  }
  return product;
}

TEST(Dim, AProductOfManySumsStaysAProduct) {
  const auto ones = [](std::string_view) { return int64_t{1}; };
  EXPECT_EQ(product_of_sums(4).text().find("product"), std::string::npos);
  for (const int count : {7, 14, 40, 62}) {
    const Dim product = product_of_sums(count);
    EXPECT_LT(product.text().size(), 4000u);
    EXPECT_EQ(product.evaluate(ones), int64_t{1} << count);
    EXPECT_EQ(product, product_of_sums(count));
    EXPECT_NE(product, product_of_sums(count - 1));
    EXPECT_EQ(Dim::parse(product.text()), product);
    EXPECT_EQ(Dim::parse((3 * b * product + s).text()), 3 * b * product + s);
    EXPECT_EQ(product.substitute([](std::string_view) { return std::optional<Dim>(1); }),
              Dim(int64_t{1} << count));
  }
  EXPECT_THROW(product_of_sums(64).evaluate(ones), UserError);
}

TEST(Dim, AProductOfManySumsDividesAndCompares) {
  const Dim product = product_of_sums(20), sum = b + s;
  EXPECT_EQ(floor_div(product, product), Dim(1));
  EXPECT_EQ(floor_div(6 * b * product, 2 * b), 3 * product);
  EXPECT_EQ(floor_div(b * product, product), b);
  EXPECT_EQ(mod(product * 4, 4), Dim(0));
  EXPECT_EQ(product - product, Dim(0));
  EXPECT_EQ(0 * product, Dim(0));
  EXPECT_EQ(max(product, 0), product);
  EXPECT_EQ(product * b * sum, sum * (b * product));
  // Nobody can tell, and nobody claims to.
  const auto ones = [](std::string_view) { return int64_t{1}; };
  EXPECT_EQ(floor_div(product * sum, sum).evaluate(ones), int64_t{1} << 20);
  EXPECT_EQ(mod(product * sum + 1, sum).evaluate(ones), 1);
  EXPECT_EQ(((product + 1) * (product + 2)).evaluate(ones),
            ((int64_t{1} << 20) + 1) * ((int64_t{1} << 20) + 2));
}

TEST(Dim, ATextWithoutEndIsRefused) {
  Dim grown = b;
  const auto grow = [&] {
    for (int i = 0; i < 100; ++i) grown = max(grown, s + i) + min(grown, t + i);
  };
  EXPECT_THROW(grow(), UserError);
  const auto square = [&] {
    for (int i = 0; i < 100; ++i) grown = grown * grown;
  };
  grown = b;
  EXPECT_THROW(square(), UserError);
}

// Builds a dim and its value side by side from random operations.
struct Sample {
  Dim dim;
  int64_t value;
};

Sample random_sample(std::mt19937& random, int depth) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  if (depth == 0) {
    const int which = pick(4);
    if (which == 0) return {b, 3};
    if (which == 1) return {s, 7};
    if (which == 2) return {t, 1};
    const int64_t constant = pick(20);
    return {constant, constant};
  }
  const Sample x = random_sample(random, depth - 1), y = random_sample(random, depth - 1);
  const auto floor_of = [](int64_t n, int64_t d) {
    return n / d - (n % d != 0 && (n < 0) != (d < 0));
  };
  switch (pick(8)) {
    case 0:
      return {x.dim + y.dim, x.value + y.value};
    case 1:
      return {x.dim - y.dim, x.value - y.value};
    case 2:
      return {x.dim * y.dim, x.value * y.value};
    case 3:
      return {min(x.dim, y.dim), std::min(x.value, y.value)};
    case 4:
      return {max(x.dim, y.dim), std::max(x.value, y.value)};
    case 5:
      return y.value == 0 ? x : Sample{floor_div(x.dim, y.dim), floor_of(x.value, y.value)};
    case 6:
      return y.value == 0 ? x : Sample{ceil_div(x.dim, y.dim), -floor_of(-x.value, y.value)};
    default:
      return y.value == 0
                 ? x
                 : Sample{mod(x.dim, y.dim), x.value - y.value * floor_of(x.value, y.value)};
  }
}

TEST(Dim, RandomExpressionsKeepTheirValueAndTheirText) {
  const auto lookup = [](std::string_view symbol) -> int64_t {
    return symbol == "b" ? 3 : symbol == "s" ? 7 : 1;
  };
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Sample sample = random_sample(random, 3);
    ASSERT_EQ(sample.dim.evaluate(lookup), sample.value) << sample.dim.text();
    ASSERT_EQ(Dim::parse(sample.dim.text()), sample.dim) << sample.dim.text();
    const auto all = [&](std::string_view symbol) { return std::optional<Dim>(lookup(symbol)); };
    ASSERT_EQ(sample.dim.substitute(all), Dim(sample.value)) << sample.dim.text();
  }
}

// Built in more steps than anything that follows them has stack for.
TEST(Dim, NestsAreBuiltUpToALimit) {
  const std::function<Dim(const Dim&)> steps[] = {
      [](const Dim& dim) { return mod(dim, t); },
      [](const Dim& dim) { return floor_div(7, dim + 1); },
      [](const Dim& dim) { return ceil_div(dim, t); },
      [](const Dim& dim) { return max(dim, t) - 1; },
      [](const Dim& dim) { return min(dim, t) + 1; },
      [](const Dim& dim) { return broadcast(dim, t) + 1; },
      [](const Dim& dim) { return stride_unless_one(dim + 2, 1); }};
  for (const auto& step : steps) {
    Dim dim = s;
    int built = 0;
    try {
      for (; built < 100000; ++built) dim = step(dim);
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("at most 64 functions"), std::string::npos);
    }
    EXPECT_GE(built, 10) << dim.text().substr(0, 100);
    EXPECT_EQ(Dim::parse(dim.text()), dim);
  }
}

// Each operand is compared with each other, each factor sorted among the others.
TEST(Dim, OperandsAreBoundedAndSummandsAreNot) {
  const auto joined = [](int count, const std::string& between) {
    std::string text = "d0";
    for (int i = 1; i < count; ++i) text += between + "d" + std::to_string(i);
    return text;
  };
  EXPECT_EQ(Dim::parse("min(" + joined(30, ",") + ")").text().substr(0, 7), "min(d0,");
  for (const std::string name : {"min", "max", "broadcast", "product", "mod"}) {
    for (const int many : {65, 100000}) {
      EXPECT_THROW(Dim::parse(name + "(" + joined(many, ",") + ")"), UserError) << name;
    }
  }
  EXPECT_NO_THROW(Dim::parse(joined(64, "*")));
  EXPECT_THROW(Dim::parse(joined(65, "*")), UserError);
  EXPECT_THROW(Dim::parse(joined(100000, "*")), UserError);
  EXPECT_THROW(Dim::parse("(" + joined(100000, "+1)*(") + ")"), UserError);
  const Dim sum = Dim::parse(joined(5000, "+"));
  EXPECT_EQ(sum, Dim::parse(sum.text()));
  EXPECT_EQ(sum - sum, Dim(0));
  EXPECT_THROW(Dim::parse(joined(100000, "+")), UserError);
  EXPECT_EQ(Dim::parse("s-s+2-t+t*3-1"), 2 * t + 1);
  EXPECT_THROW(Dim::parse("9223372036854775807+s+1-s"), UserError);
}

}  // namespace
}  // namespace tenon
