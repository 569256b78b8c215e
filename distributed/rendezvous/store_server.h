// Rank 0's side of the store: a thread that lets ranks in, passes on what each of them posts, and
// tells all when one is gone. Strangers are turned away; none of them can keep a rank waiting.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "distributed/rendezvous/job_token.h"
#include "distributed/rendezvous/socket.h"

namespace tenon::distributed {

class StoreLoop;

class StoreServer {
 public:
  struct Settings {
    int size = 1;
    JobToken token{};
    std::chrono::milliseconds silence{30'000};  // a rank that is silent for so long is lost
    std::chrono::milliseconds beat{250};        // how often it is heard itself
    // Which stranger goes where too many come; empty: nobody can foresee it.
    std::function<uint64_t()> random{};
  };

  // `listening` stays open until all ranks are in: the next group may meet at the same port.
  StoreServer(Socket listening, const Settings& settings);
  // Sends what is still to be sent, for a second at most.
  ~StoreServer();

 private:
  std::unique_ptr<StoreLoop> loop_;
  std::thread thread_;  // last: it uses the loop
};

// Listens at the first of these ports that is free, trying for a while; a UserError names what is
// in the way.
Socket listen_at_first(const std::string& host, const std::vector<uint16_t>& ports,
                       Clock::time_point limit);

}  // namespace tenon::distributed
