// Mutated texts through every parser: the plain driver of what libFuzzer does for longer.
#include "parsers.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace tenon::fuzz {
namespace {

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}

  std::string next() {
    std::string text = pick(seeds_);
    for (int i = below(4); i >= 0; --i) mutate(text);
    return text;
  }

 private:
  int below(size_t limit) { return static_cast<int>(random_() % std::max<size_t>(limit, 1)); }
  const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

  void mutate(std::string& text) {
    static const std::vector<std::string> words = {"",
                                                   "0",
                                                   "-1",
                                                   "9223372036854775807",
                                                   "-9223372036854775808",
                                                   "99999999999999999999",
                                                   "(",
                                                   ")",
                                                   "[",
                                                   "]",
                                                   "{",
                                                   "}",
                                                   "%",
                                                   "'",
                                                   "*",
                                                   "\n",
                                                   "f32",
                                                   "\xff",
                                                   "+",
                                                   ",",
                                                   "=",
                                                   "floordiv(",
                                                   "1e999",
                                                   "nan"};
    const int at = below(text.size() + 1);
    const int length = below(std::min<size_t>(text.size() - at, 12) + 1);
    switch (below(6)) {
      case 0:
        text.replace(at, length, pick(words));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size() + 1), below(40)));
        break;
      case 3:
        if (!text.empty()) text[below(text.size())] = static_cast<char>(random_());
        break;
      case 4:
        text = with_another_number(std::move(text), random_());
        break;
      default: {
        const std::string& other = pick(seeds_);
        text = text.substr(0, at) + other.substr(below(other.size() + 1));
      }
    }
  }

  std::vector<std::string> seeds_;
  std::mt19937_64 random_{19};
};

class EveryParser : public testing::TestWithParam<Parser> {};

TEST_P(EveryParser, TakesItsOwnSeeds) {
  const std::vector<std::string> seeds = GetParam().seeds(".");
  ASSERT_FALSE(seeds.empty());
  int taken = 0;
  for (const std::string& seed : seeds) {
    try {
      GetParam().take(seed);
      ++taken;
    } catch (const UserError&) {
      // Some of the texts are there to be refused.
    }
  }
  EXPECT_GT(taken, 0);
}

TEST_P(EveryParser, AnswersEveryTextWithAValueOrAUserError) {
  Mutator mutator(GetParam().seeds("."));
  for (int i = 0; i < GetParam().texts; ++i) {
    const std::string text = mutator.next();
    try {
      GetParam().take(text);
    } catch (const UserError&) {
    } catch (const std::exception& error) {
      FAIL() << "text " << i << ": " << error.what() << "\n" << text;
    }
  }
}

TEST_P(EveryParser, AnswersEveryNumberInATextThatItTakes) {
  const std::vector<std::string> seeds = GetParam().seeds(".");
  std::mt19937_64 random(23);
  for (int i = 0; i < GetParam().texts / 5; ++i) {
    const std::string text = with_another_number(seeds[random() % seeds.size()], random());
    try {
      GetParam().take(text);
    } catch (const UserError&) {
    } catch (const std::exception& error) {
      FAIL() << "text " << i << ": " << error.what() << "\n" << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, EveryParser, testing::ValuesIn(parsers().begin(), parsers().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tenon::fuzz
