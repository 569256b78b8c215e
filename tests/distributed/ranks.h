// Ranks as threads, each with the same body.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "distributed/communicator.h"

namespace tenon::distributed {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

// What each rank's body threw; "" for those that came through. CollectiveErrors stand as they are,
// others begin with "not collective: ".
inline std::vector<std::string> run_ranks(const Communicators& ranks,
                                          const std::function<void(Communicator&)>& body) {
  std::vector<std::string> thrown(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*ranks[rank]);
      } catch (const CollectiveError& error) {
        thrown[rank] = error.what();
      } catch (const std::exception& error) {
        thrown[rank] = std::string("not collective: ") + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

inline std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace tenon::distributed
