#include "distributed/rendezvous/store_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/error.h"
#include "distributed/rendezvous/quiet_thread.h"
#include "distributed/rendezvous/store_loop.h"

namespace tenon::distributed {
namespace {

constexpr std::chrono::milliseconds kPortTime{2000};  // for a port to become free
constexpr std::chrono::milliseconds kPause{50};

}  // namespace

StoreServer::StoreServer(Socket listening, const Settings& settings)
    : loop_(std::make_unique<StoreLoop>(std::move(listening), settings)),
      thread_(quiet_thread([this] { loop_->run(); })) {}

StoreServer::~StoreServer() {
  loop_->stop();
  thread_.join();
}

Socket listen_at_first(const std::string& host, const std::vector<uint16_t>& ports,
                       Clock::time_point limit) {
  limit = std::min(limit, Clock::now() + kPortTime);
  while (true) {
    std::string errors;
    bool taken = false;
    for (const Endpoint& endpoint : resolve(host, ports)) {
      OpenedSocket opened = listen_at(endpoint);
      if (opened.socket) return std::move(opened.socket);
      errors += fmt::format("{}{}: {}", errors.empty() ? "" : "; ", endpoint.text(), opened.error);
      taken = taken || opened.error_number == EADDRINUSE;
    }
    if (!taken || Clock::now() >= limit) {
      throw UserError(
          fmt::format("rank 0 cannot listen for the other ranks at {} ({}). Give "
                      "collective_address=host:port with an address of rank 0's host and a port "
                      "that is free there",
                      host, errors));
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace tenon::distributed
