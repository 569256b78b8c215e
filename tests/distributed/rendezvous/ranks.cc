#include "ranks.h"

#include <gtest/gtest.h>

#include <thread>

namespace tenon::distributed {

Endpoint endpoint(const std::string& host, uint16_t port) {
  return resolve(host, {&port, 1}).front();
}

std::vector<uint16_t> free_ports(int count) {
  std::vector<Socket> sockets;
  std::vector<uint16_t> ports;
  for (int i = 0; i < count; ++i) {
    OpenedSocket opened = listen_at(endpoint("127.0.0.1", 0));
    EXPECT_TRUE(opened.socket) << opened.error;
    ports.push_back(local_endpoint(opened.socket).port());
    sockets.push_back(std::move(opened.socket));
  }
  return ports;
}

LaunchPlace meeting(int size, std::vector<uint16_t> ports) {
  LaunchPlace place;
  place.size = size;
  place.host = "127.0.0.1";
  place.ports = std::move(ports);
  place.token = sha256("the token of a test");
  return place;
}

Store::Settings seconds(int deadline, int silence) {
  return {.deadline = std::chrono::seconds(deadline),
          .silence = std::chrono::seconds(silence),
          .on_lost = {}};
}

std::vector<LaunchPlace> places_of(const LaunchPlace& meeting) {
  std::vector<LaunchPlace> places(static_cast<size_t>(meeting.size), meeting);
  for (size_t rank = 0; rank < places.size(); ++rank) places[rank].rank = static_cast<int>(rank);
  return places;
}

std::string run_rank(const LaunchPlace& place, const Work& work, const Store::Settings& settings) {
  try {
    const std::unique_ptr<Store> store = Store::join(place, settings);
    return work(*store);
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::vector<std::string> run_ranks(const std::vector<LaunchPlace>& places, const Work& work,
                                   const Store::Settings& settings) {
  std::vector<std::string> results(places.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < places.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = run_rank(places[i], work, settings); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<std::string> run_ranks(int size, const Work& work, const Store::Settings& settings) {
  return run_ranks(places_of(meeting(size)), work, settings);
}

}  // namespace tenon::distributed
