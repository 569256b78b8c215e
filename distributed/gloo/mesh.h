// The connections of one rank to all others of its communicator, and messages over them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "distributed/gloo/functions.h"
#include "distributed/key_values.h"

namespace tenon::distributed {

class GlooMesh {
 public:
  // Who is in it, by their ranks in the store, and which of them this is.
  struct Members {
    std::vector<int> store_ranks;
    int rank;
    std::string key;  // under which they meet, and nobody else ever did
  };
  using Device = std::shared_ptr<tenon_gloo_device>;
  using Transfers = std::vector<tenon_gloo_transfer>;

  // Of an address as own_address (address.h) gives it.
  static Device open_device(const tenon_gloo_functions& functions, const std::string& address);

  // Connects all members. What fails is a CollectiveError, here and in exchange.
  GlooMesh(const tenon_gloo_functions& functions, Device device, KeyValues store, Members members,
           std::chrono::milliseconds deadline);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  // `call` is for errors. Messages go between two who say the same in `meets`: it must have the
  // size in it and whatever else they have to agree on, and never have been said before.
  void exchange(const std::string& call, const std::string& meets, const Transfers& receives,
                const Transfers& sends);
  void abort(const std::string& reason);

  const tenon_gloo_functions& functions() const { return functions_; }
  const Device& device() const { return device_; }
  const KeyValues& store() const { return store_; }
  const Members& members() const { return members_; }

 private:
  struct Destroy {
    const tenon_gloo_functions* functions;
    void operator()(tenon_gloo_mesh* mesh) const { functions->destroy_mesh(mesh); }
  };
  void connect();
  void wait_for_all(std::chrono::milliseconds deadline);
  void exchange(const std::string& call, const std::string& meets, const Transfers& receives,
                const Transfers& sends, std::chrono::milliseconds deadline);
  [[noreturn]] void fail(const std::string& call, const tenon_gloo_report& report);
  void tell(const std::string& why) noexcept;
  std::string told_by(std::span<const int> ranks) noexcept;
  std::string key(const char* what) const { return members_.key + "/" + what; }

  const tenon_gloo_functions& functions_;
  const Device device_;
  const KeyValues store_;
  const Members members_;
  const std::chrono::milliseconds deadline_;
  std::unique_ptr<tenon_gloo_mesh, Destroy> mesh_;
};

}  // namespace tenon::distributed
