// What ranks are about to do, each at its time, and whether all do the same.
#pragma once

#include <deque>
#include <map>
#include <string>

namespace tenon::distributed {

class Announcements {
 public:
  explicit Announcements(int ranks) : ranks_(ranks) {}

  // `word`: an encoded Fingerprint. "at Run 3, the ranks differ in the shapes: …" where it is not
  // what others said of this occasion; empty where it is.
  std::string take(int rank, const std::string& occasion, const std::string& word);

 private:
  const int ranks_;
  std::map<std::string, std::map<int, std::string>> open_;  // occasion: what ranks said
  std::deque<std::string> order_;                           // occasions, the oldest first
};

}  // namespace tenon::distributed
