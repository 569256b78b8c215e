#include "distributed/rendezvous/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "ranks.h"

namespace tenon::distributed {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

StartFacts facts() {
  return {.model = "sha256 5e21",
          .options = "precision_mode=exact",
          .build = "b1",
          .ranks = 4,
          .engine = "loopback"};
}

TEST(Fingerprint, SaysNothingWhereRanksAgree) {
  EXPECT_EQ(difference({fingerprint(facts()), fingerprint(facts())}), "");
  EXPECT_EQ(difference({Fingerprint{}, Fingerprint{}}), "");
}

TEST(Fingerprint, NamesTheFieldTheRanksAndTheValues) {
  StartFacts other = facts();
  other.model = "sha256 77aa";
  const Fingerprint usual = fingerprint(facts());
  EXPECT_EQ(
      difference({usual, usual, fingerprint(other), usual}),
      "the ranks differ in the model: sha256 5e21 on ranks 0, 1 and 3, sha256 77aa on rank 2");
  other.engine = "nccl 2.28.9";
  EXPECT_EQ(difference({usual, fingerprint(other)}),
            "the ranks differ in the model: sha256 5e21 on rank 0, sha256 77aa on rank 1; in the "
            "collective engine: loopback on rank 0, nccl 2.28.9 on rank 1");
  EXPECT_EQ(difference({{{{"shape of 'ids'", "[1, 7]"}}}, {}, {{{"shape of 'ids'", ""}}}}),
            "the ranks differ in the shape of 'ids': [1, 7] on rank 0, nothing on rank 1, '' on "
            "rank 2");
}

TEST(Fingerprint, EveryStartFactCounts) {
  const auto differs = [](auto change) {
    StartFacts other = facts();
    change(other);
    return difference({fingerprint(facts()), fingerprint(other)});
  };
  EXPECT_THAT(differs([](StartFacts& f) { f.model = "x"; }), HasSubstr("model"));
  EXPECT_THAT(differs([](StartFacts& f) { f.options = "x"; }), HasSubstr("options"));
  EXPECT_THAT(differs([](StartFacts& f) { f.build = "x"; }), HasSubstr("build of Tenon"));
  EXPECT_THAT(differs([](StartFacts& f) { f.ranks = 9; }), HasSubstr("number of ranks: 4"));
  EXPECT_THAT(differs([](StartFacts& f) { f.engine = "x"; }), HasSubstr("collective engine"));
}

TEST(Fingerprint, ShowsLongValuesWhereTheyPart) {
  const std::string same(1000, 'a');
  const std::string text =
      difference({{{{"options", same + "left"}}}, {{{"options", same + "right"}}}});
  EXPECT_THAT(
      text, AllOf(HasSubstr("…aaaa"), HasSubstr("aleft on rank 0"), HasSubstr("aright on rank 1")));
  EXPECT_LT(text.size(), 300);
  const std::string tail(1000, 'z');
  EXPECT_LT(difference({{{{"options", "l" + tail}}}, {{{"options", "r" + tail}}}}).size(), 400);
}

TEST(Fingerprint, CountsTheFieldsThatItDoesNotShow) {
  Fingerprint left, right;
  for (int i = 0; i < 100; ++i) {
    left.fields.emplace_back("input " + std::to_string(i), "a");
    right.fields.emplace_back("input " + std::to_string(i), "b");
  }
  EXPECT_THAT(difference({left, right}), HasSubstr("; and in 96 more"));
}

TEST(Fingerprint, BytesAndBack) {
  const Fingerprint usual = fingerprint(facts());
  const std::string bytes = encode(usual);
  EXPECT_EQ(decode_fingerprint(bytes).fields, usual.fields);
  int refused = 0;
  for (size_t length = 0; length < bytes.size(); ++length) {
    try {
      EXPECT_LT(decode_fingerprint(bytes.substr(0, length)).fields.size(), usual.fields.size());
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(Fingerprint, ConcurrentRanksGetTheSameErrorAndGoOn) {
  const std::vector<std::string> errors = run_ranks(4, [](Store& store) {
    StartFacts mine = facts();
    require_equal(store, "start", fingerprint(mine), 5s);
    if (store.rank() == 2) mine.model = "sha256 77aa";
    std::string error = "none";
    try {
      require_equal(store, "start", fingerprint(mine), 5s);
    } catch (const UserError& caught) {
      error = caught.what();
    }
    require_equal(store, "Run", {{{"shape of 'ids'", "[1, 7]"}}}, 5s);
    return error;
  });
  EXPECT_THAT(errors, Each("at start, the ranks differ in the model: sha256 5e21 on ranks 0, 1 and "
                           "3, sha256 77aa on rank 2"));
}

TEST(Fingerprint, ConcurrentRanksWithBytesThatAreNone) {
  const std::vector<std::string> errors = run_ranks(2, [](Store& store) -> std::string {
    if (store.rank() == 1) {
      (void)store.all_gather("fingerprints of start", "\x07garbage");
      return "sent";
    }
    require_equal(store, "start", fingerprint(facts()), 5s);
    return "none";
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1"), HasSubstr("another build")));
}

}  // namespace
}  // namespace tenon::distributed
