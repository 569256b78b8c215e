// Ranks as processes, which tests stop and kill. The test's own process stays without threads.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tenon::distributed {

class Processes {
 public:
  // A line to the test's process.
  using Say = std::function<void(const std::string&)>;

  ~Processes();  // kills and reaps what is left
  // Runs it in a process of its own, which then ends without destroying anything.
  void start(const std::function<void(const Say& say)>& work);
  // The next line of the how manieth process; a failed test and "" after `limit` or at its end.
  std::string line(size_t process, std::chrono::milliseconds limit = std::chrono::seconds(20));
  void signal(size_t process, int number);
  pid_t pid(size_t process) const { return children_.at(process).pid; }

 private:
  struct Child {
    pid_t pid = -1;
    int pipe = -1;
    std::string read;
  };
  std::vector<Child> children_;
};

}  // namespace tenon::distributed
