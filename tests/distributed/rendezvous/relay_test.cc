// Somebody without the token between rank 1 and rank 0: true values or an error, never forged ones.
#include "relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <tuple>
#include <utility>

#include "ranks.h"

namespace tenon::distributed {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using Direction = Relay::Direction;

constexpr int kRounds = 8;

// What the ranks tell each other is what they hear, in every round.
std::string gather(Store& store) {
  for (int round = 0; round < kRounds; ++round) {
    const auto values = store.all_gather("round", "rank " + std::to_string(store.rank()), 10s);
    if (values != std::vector<std::string>{"rank 0", "rank 1"}) return "FORGED";
  }
  return "true values";
}

const Store::Settings kSettings{.deadline = 5s, .silence = 10s, .on_lost = {}};

std::string as_it_is(Direction, int, std::string unit) { return unit; }

// Rank 1 calls an address of its own at rank 0's port, as where somebody has the line to rank 0's
// host: the greeting is in order.
struct OnTheLine {
  explicit OnTheLine(Relay::Meddle meddle)
      : places(places_of(meeting(2, free_ports(1)))),
        relay(endpoint("127.0.0.2", places[0].ports[0]), endpoint("127.0.0.1", places[0].ports[0]),
              std::move(meddle)) {
    places[1].host = "127.0.0.2";
    said = run_ranks(places, gather, kSettings);
  }
  std::vector<LaunchPlace> places;
  Relay relay;
  std::vector<std::string> said;
};

TEST(ConcurrentRelay, OnTheLineMayPassThingsOnAsTheyAre) {
  const OnTheLine line(as_it_is);
  EXPECT_EQ(line.said[0], "true values");
  EXPECT_EQ(line.said[1], "true values");
  EXPECT_GT(line.relay.passed(), 0);
}

// As it is, but for one unit of one direction.
class Meddled : public testing::TestWithParam<std::tuple<Direction, std::string, int>> {
 protected:
  static std::string meddle(const std::string& how, int bit, std::string& kept, std::string unit) {
    if (how == "changed") {
      unit[static_cast<size_t>(bit) / 8 % unit.size()] ^= static_cast<char>(1 << bit % 8);
    } else if (how == "repeated") {
      unit += unit;
    } else if (how == "left out") {
      unit.clear();
    } else if (how == "moved") {
      kept = std::exchange(unit, "");
    }
    return unit;
  }
};

TEST_P(Meddled, ConcurrentRanksGetAnErrorEach) {
  const auto& [direction, how, at] = GetParam();
  std::string kept;
  std::mt19937 random(static_cast<unsigned>(at));
  const int bit = static_cast<int>(random() % 4096);
  const OnTheLine line([&, direction = direction, how = how, at = at](Direction along, int number,
                                                                      std::string unit) {
    if (along != direction || number < at) return unit;
    if (number == at) return meddle(how, bit, kept, std::move(unit));
    return unit + std::exchange(kept, "");
  });
  for (const std::string& said : line.said) {
    EXPECT_THAT(said, testing::Not(testing::AnyOf("FORGED", "true values")));
  }
  const std::string& victim = line.said[direction == Direction::kToServer ? 0 : 1];
  // A length that grew makes its reader wait for what never comes.
  if (how != "changed") {
    EXPECT_THAT(victim, AllOf(HasSubstr("MAC"), HasSubstr("between the ranks")));
  }
}

INSTANTIATE_TEST_SUITE_P(Relay, Meddled,
                         testing::Combine(testing::Values(Direction::kToServer, Direction::kToRank),
                                          testing::Values("changed", "repeated", "left out",
                                                          "moved"),
                                          testing::Values(1, 2, 4)));

// The first of the ports is somebody else's, who calls rank 0 at the second.
TEST(ConcurrentRelay, AtAnotherPortFailsAtTheGreeting) {
  auto places = places_of(meeting(2, free_ports(3)));
  Relay relay(endpoint("127.0.0.1", places[0].ports[0]), endpoint("127.0.0.1", places[0].ports[1]),
              as_it_is);
  const auto said = run_ranks(places, gather, kSettings);
  EXPECT_EQ(said[0], "true values");
  EXPECT_EQ(said[1], "true values") << "it goes on to the next port";
  EXPECT_GE(relay.connections(), 1);
  EXPECT_EQ(relay.passed(), 0);
}

TEST(ConcurrentRelay, ThatIsAllARankFindsIsNamed) {
  auto places = places_of(meeting(2, free_ports(1)));
  places[1].ports = free_ports(1);
  Relay relay(endpoint("127.0.0.1", places[1].ports[0]), endpoint("127.0.0.1", places[0].ports[0]),
              as_it_is);
  Store::Settings soon = kSettings;
  soon.deadline = 800ms;
  const auto said = run_ranks(places, gather, soon);
  EXPECT_THAT(said[0], AllOf(HasSubstr("rank 1 did not join"), HasSubstr("stranger")));
  EXPECT_THAT(said[1], AllOf(HasSubstr("rank 0 did not let rank 1 in"), HasSubstr("stranger")));
}

}  // namespace
}  // namespace tenon::distributed
