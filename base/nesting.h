// How deep brackets may stand in each other in what comes from outside: one limit for all parsers,
// for what is verified and for what is built of parts that came from outside, so that nothing that
// walks, prints or destroys a nest needs more stack than the smallest thread has.
#pragma once

#include <string>
#include <string_view>

namespace tenon {

class Nesting {
 public:
  // Sizes, kernels and graphs of models have a handful of levels.
  static constexpr int kDeepest = 64;

  // "at most 64 regions in each other"
  static std::string limit(std::string_view what) {
    return "at most " + std::to_string(kDeepest) + " " + std::string(what) + " in each other";
  }

  // Entered where a level begins, left where its scope ends.
  class Level {
   public:
    explicit Level(int& depth) : depth_(depth) { ++depth_; }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& depth_;
  };

  // False: nobody may enter one more.
  bool has_room() const { return depth_ < kDeepest; }
  [[nodiscard]] Level enter() { return Level(depth_); }

 private:
  int depth_ = 0;
};

}  // namespace tenon
