#include "distributed/connect_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "distributed/gloo/address.h"
#include "distributed/gloo/gloo.h"
#include "distributed/host_id.h"
#include "distributed/messages.h"
#include "distributed/nccl.h"
#include "distributed/rendezvous/fingerprint.h"
#include "distributed/shared_memory/shared_memory.h"

namespace tenon::distributed {
namespace {

// From 2.30 on NCCL lets two ranks share a GPU, where this says so.
bool may_share_gpu() {
  const char* value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value != nullptr && std::string_view(value) == "1";
}

NcclId exchange_id(Store& store, const NcclFunctions& functions,
                   std::chrono::milliseconds deadline) {
  constexpr std::string_view kKey = "nccl id";
  NcclId id;
  if (store.rank() == 0) {
    id = make_nccl_id(functions);
    store.set(kKey, {reinterpret_cast<const char*>(&id), sizeof(id)});
    return id;
  }
  const std::string bytes = store.get(0, kKey, deadline);
  if (bytes.size() != sizeof(id)) {
    throw CollectiveError(
        fmt::format("rank 0 sent {} bytes as NCCL's id, not {}", bytes.size(), sizeof(id)));
  }
  std::memcpy(&id, bytes.data(), sizeof(id));
  return id;
}

// All ranks come to the same answer.
bool are_on_one_host(const std::vector<std::string>& places) {
  const auto host = [](const std::string& place) { return place.substr(0, place.find(' ')); };
  return std::ranges::all_of(
      places, [&](const std::string& place) { return host(place) == host(places[0]); });
}

}  // namespace

std::unique_ptr<Communicator> connect_host(Store& store, const std::string& backend,
                                           const std::string& towards,
                                           std::chrono::milliseconds deadline) {
  const KeyValues values{
      [&store](const std::string& key, const std::string& value) { store.set(key, value); },
      [&store](int rank, const std::string& key, std::chrono::milliseconds until) {
        return store.get(rank, key, until);
      }};
  GlooSettings settings;
  settings.common.deadline = deadline;
  if (backend != "gloo") {
    auto [made, why] = make_shared_memory(store.rank(), store.size(), values, settings.common);
    if (made != nullptr) return std::move(made);
    if (backend == "shm") throw UserError(fmt::format("collective_backend=shm: {}", why));
    if (const Support gloo = gloo_support(); !gloo) {
      throw UserError(fmt::format("{}; {}", gloo.reason, why));
    }
    settings.note = why;
  }
  settings.address = address_towards(towards);
  return make_gloo(store.rank(), store.size(), values, settings);
}

std::string shared_gpu(const std::vector<std::string>& places) {
  for (size_t first = 0; first < places.size(); ++first) {
    std::vector<int> sharing;
    for (size_t rank = first; rank < places.size(); ++rank) {
      if (places[rank] == places[first]) sharing.push_back(static_cast<int>(rank));
    }
    if (sharing.size() < 2) continue;
    return fmt::format(
        "{} have the same GPU, {}: give each process one of its own (the OrtEpDevice whose "
        "cuda_device_id is the launcher's local rank, or CUDA_VISIBLE_DEVICES)",
        ranks_text(sharing), places[first].substr(places[first].rfind(' ') + 1));
  }
  return "";
}

std::unique_ptr<Communicator> connect_nccl(Store& store, std::shared_ptr<RankDevice> gpu,
                                           const NcclOptions& options) {
  const NcclFunctions& functions = nccl().functions;
  const Fingerprint facts{
      {{"NCCL", nccl_version_text(functions.version)}, {"architecture of the GPU", gpu->arch()}}};
  require_equal(store, "GPUs", facts, options.deadline);
  const std::vector<std::string> places =
      store.all_gather("places of GPUs", host_id() + ' ' + gpu->place(), options.deadline);
  const std::string shared = shared_gpu(places);
  if (!shared.empty() && !may_share_gpu()) throw UserError(shared);
  NcclSettings settings;
  settings.common.deadline = options.deadline;
  settings.mixes_graphs = options.mixes_graphs;
  PeerSum::Answer peers;
  if (options.peer_memory && gpu->gpu() != nullptr) {
    peers =
        are_on_one_host(places)
            ? PeerSum::connect(store, gpu->gpu(), /*shares_gpu=*/!shared.empty(), options.deadline)
            : PeerSum::Answer{nullptr, "ranks are on several hosts"};
  }
  auto made = make_nccl(functions, exchange_id(store, functions, options.deadline), store.rank(),
                        store.size(), std::move(gpu), settings, std::move(peers));
  // Ranks that cannot reach each other say so now, and no graph is captured around a first contact.
  made->barrier(nullptr);
  return made;
}

}  // namespace tenon::distributed
