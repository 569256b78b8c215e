// Brackets in brackets through every parser, on a thread of little stack: up to the limit they are
// taken, beyond it they are an error that says the limit.
#include <pthread.h>

#include <functional>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/nesting.h"
#include "parsers.h"

namespace tenon::fuzz {
namespace {

constexpr size_t kStack = 256 << 10;

// What threads of other people's programs have.
void on_a_small_stack(std::function<void()> work) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kStack), 0);
  pthread_t thread{};
  const auto start = [](void* argument) -> void* {
    (*static_cast<std::function<void()>*>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, start, &work), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

// "": it was taken.
std::string answer(std::string_view parser_name, const std::string& text) {
  std::string why;
  on_a_small_stack([&] {
    try {
      parser(parser_name).take(text);
    } catch (const UserError& error) {
      why = error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  });
  return why;
}

std::string repeated(std::string_view text, size_t times) {
  std::string all;
  all.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

// A text that nests; `@` is the number of the level.
struct Nest {
  std::string_view name, parser, before, opening, inside, closing, after;
  size_t levels_around = 0;  // those of `before`

  size_t bytes(size_t levels) const { return levels * (opening.size() + closing.size()); }

  std::string text(size_t levels) const {
    std::string all(before);
    for (size_t i = 0; i < levels; ++i) {
      for (const char c : opening) all += c == '@' ? std::to_string(i) : std::string(1, c);
    }
    return all.append(inside).append(repeated(closing, levels)).append(after);
  }
};

constexpr std::string_view kKernel = "kernel @k(%x: buffer<f32>) {\n%c = constant 1 : bool[]\n";

constexpr Nest kNests[] = {
    {"brackets_of_a_dim", "dim_text", "", "(", "s", ")", ""},
    {"negated_brackets_of_a_dim", "dim_text", "", "-(", "s", ")", ""},
    {"remainders", "dim_text", "", "mod(", "s", ",t)", ""},
    {"quotients", "dim_text", "", "floordiv(3,", "s", ")+1", ""},
    {"broadcasts", "dim_text", "", "broadcast(1+", "s", ",t)", ""},
    {"unlessone", "dim_text", "", "unlessone(2+", "s", ")", ""},
    {"dims_of_a_shape", "shape_text", "[4,", "mod(", "s", ",t)", ",2]"},
    {"dims_of_a_graph", "graph_text", "graph g {\ninput %x: f32[", "mod(", "s", ",t)", "]\n}"},
    {"bodies", "graph_text", "graph g {\ninput %x: f32[4]\n",
     "%y: f32[4] = Loop(%x) body {\ninput %x: f32[4]\n", "output %x\n", "}\n", "}\n", 1},
    {"bodies_in_a_context", "graph_with_constants", "graph g {\ninput %x: f32[4]\n",
     "%y: f32[4] = Loop(%x) body {\ninput %x: f32[4]\n", "output %x\n", "}\n", "}\n", 1},
    {"branches", "tile_text", kKernel, "if %c {\n", "", "yield\n} else {\nyield\n}\n", "}\n", 1},
    {"other_branches", "tile_text", kKernel, "if %c {\nyield\n} else {\n", "", "yield\n}\n", "}\n",
     1},
    {"loops", "tile_text", kKernel, "for %i@ = 0 to 4 step 1 {\n", "", "yield\n}\n", "}\n", 1},
    {"pipelines", "tile_text", kKernel,
     "pipeline 2 0 to 4 produce(%a@, %b@) { yield } consume(%d@, %e@) {\n", "", "yield\n}\n", "}\n",
     1},
    {"messages", "tuning_file", "record ", "{ a ", "{}", "}", "", 3},
    {"messages_in_angles", "tuning_file", "record ", "{ a ", "<>", "}", "", 3},
    {"messages_in_lists", "tuning_file", "record ", "{ a: [ ", "{}", "]}", "", 3},
};

class EveryNest : public testing::TestWithParam<Nest> {};

TEST_P(EveryNest, IsTakenUpToTheLimitAndRefusedBeyond) {
  const Nest& nest = GetParam();
  const size_t most = Nesting::kDeepest - nest.levels_around;
  const std::string limit = "at most " + std::to_string(Nesting::kDeepest);
  // A tuning file drops what it cannot read and takes the rest.
  const bool drops = nest.parser == "tuning_file";
  EXPECT_EQ(answer(nest.parser, nest.text(most)), "");
  constexpr size_t kLargest = 4 << 20;
  for (size_t levels = most + 1; levels <= 1000000 && nest.bytes(levels) < kLargest; levels *= 10) {
    const std::string why = answer(nest.parser, nest.text(levels));
    EXPECT_TRUE(drops || why.find(limit) != why.npos) << levels << ": " << why.substr(0, 300);
    EXPECT_LT(why.size(), 1000) << levels;
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, EveryNest, testing::ValuesIn(kNests),
                         [](const auto& info) { return std::string(info.param.name); });

class EveryParserOnASmallStack : public testing::TestWithParam<Parser> {};

// Anywhere in what it takes.
TEST_P(EveryParserOnASmallStack, AnswersManyBracketsOfAnyKind) {
  std::mt19937_64 random(7);
  for (const std::string_view opening : {"(", "[", "{", "<", "a{", "a:[", "{\"a\":", "body{"}) {
    const std::vector<std::string> seeds = GetParam().seeds(".");
    for (const size_t levels : {100, 10000, 100000}) {
      std::string text = seeds[random() % seeds.size()];
      text.insert(random() % (text.size() + 1), repeated(opening, levels));
      (void)answer(GetParam().name, text);
    }
    (void)answer(GetParam().name, repeated(opening, 1000000));
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, EveryParserOnASmallStack,
                         testing::ValuesIn(parsers().begin(), parsers().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tenon::fuzz
