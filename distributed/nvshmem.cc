#include "distributed/nvshmem.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "distributed/bounded_call.h"
#include "distributed/messages.h"

namespace tenon::distributed {
namespace {

using std::chrono::milliseconds;

// NVSHMEM is one for the whole process.
struct Process {
  std::mutex mutex;
  bool is_in_use = false;
  std::string spoilt;  // why nothing may be asked of NVSHMEM any more
};
Process& process() {
  static Process& process = *new Process;
  return process;
}

// This process's part in a job, and the memory that is the same on all ranks.
class World {
 public:
  World(const NvshmemFunctions& functions, std::shared_ptr<RankDevice> device,
        const NvshmemSettings& settings);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Throws CollectiveError.
  void start(const NvshmemId& id, int rank, int size);
  // Runs what may wait for peers, and waits for it. Empty, or what went wrong.
  std::string call(std::function<int()> work);
  // No end to wait for: what NVSHMEM holds stays until the process ends.
  void spoil(const std::string& why);

  const NvshmemFunctions& functions() const { return functions_; }
  RankDevice& device() { return *device_; }
  size_t piece_bytes() const { return settings_.piece_bytes; }
  void* in() { return memory_; }
  void* out() { return static_cast<char*>(memory_) + settings_.piece_bytes; }

 private:
  const NvshmemFunctions& functions_;
  const std::shared_ptr<RankDevice> device_;
  const NvshmemSettings settings_;
  void* memory_ = nullptr;
  bool is_started_ = false;
};

World::World(const NvshmemFunctions& functions, std::shared_ptr<RankDevice> device,
             const NvshmemSettings& settings)
    : functions_(functions), device_(std::move(device)), settings_(settings) {
  const std::lock_guard lock(process().mutex);
  if (!process().spoilt.empty()) {
    throw CollectiveError("NVSHMEM can be used again by a new process only: " + process().spoilt);
  }
  if (process().is_in_use) {
    throw CollectiveError("NVSHMEM is in use in this process, which can be in one job at a time");
  }
  process().is_in_use = true;
}

World::~World() {
  const auto is_spoilt = [] {
    const std::lock_guard lock(process().mutex);
    return !process().spoilt.empty();
  };
  if (is_started_ && !is_spoilt()) {
    const std::string wrong = call([&functions = functions_, memory = memory_] {
      if (memory != nullptr) functions.free(memory);
      functions.finalize();
      return 0;
    });
    if (!wrong.empty()) spoil("its end: " + wrong);
  }
  const std::lock_guard lock(process().mutex);
  process().is_in_use = false;
}

std::string World::call(std::function<int()> work) {
  struct Outcome {
    int status = 0;
    std::string thrown;
  };
  const auto outcome = std::make_shared<Outcome>();
  // All that it needs goes along: it may outlive us.
  const bool ended =
      call_within(settings_.common.deadline, [outcome, device = device_, work = std::move(work)] {
        try {
          device->make_current();
          outcome->status = work();
        } catch (const std::exception& error) {
          outcome->thrown = error.what();
        }
      });
  if (!ended) {
    return fmt::format("NVSHMEM was not done within {}, it waits for other ranks",
                       time_text(settings_.common.deadline));
  }
  if (!outcome->thrown.empty()) return outcome->thrown;
  return outcome->status == 0 ? "" : fmt::format("NVSHMEM: status {}", outcome->status);
}

void World::spoil(const std::string& why) {
  const std::lock_guard lock(process().mutex);
  if (process().spoilt.empty()) process().spoilt = why;
}

void World::start(const NvshmemId& id, int rank, int size) {
  const auto give_up = [&](const std::string& why) {
    const std::string text = fmt::format("a job of {} ranks, as rank {}: {}", size, rank, why);
    spoil(text);
    throw CollectiveError(text);
  };
  struct Started {
    NvshmemId id;
    NvshmemInit init;
    void* memory = nullptr;
    int status = 0;
  };
  const auto started = std::make_shared<Started>();
  started->id = id;
  std::string wrong = call([&functions = functions_, started, rank, size] {
    const int refused = functions.set_id(rank, size, &started->id, &started->init);
    return refused != 0 ? refused : functions.init(kNvshmemInitWithId, &started->init);
  });
  if (!wrong.empty()) give_up(wrong);
  is_started_ = true;
  // Its collectives would end the process.
  if (const int status = functions_.init_status(); status == kNvshmemSharedLimited) {
    give_up("ranks share a GPU without MPS, where NVSHMEM has no collectives");
  } else if (status != kNvshmemAlone && status != kNvshmemShared) {
    give_up(fmt::format("NVSHMEM says that it has not started (status {})", status));
  }
  wrong = call([&functions = functions_, started, bytes = 2 * settings_.piece_bytes] {
    started->memory = functions.allocate(bytes);
    return 0;
  });
  if (!wrong.empty()) give_up(wrong);
  memory_ = started->memory;
  if (memory_ == nullptr) {
    give_up(
        fmt::format("NVSHMEM has no {} bytes (NVSHMEM_SYMMETRIC_SIZE)", 2 * settings_.piece_bytes));
  }
}

// Where the ranks of a group begin and how far apart they are; nothing where they are not evenly
// so.
struct Stride {
  int first = 0, step = 1;
};
std::optional<Stride> stride_of(const std::vector<int>& group) {
  Stride stride{group[0], group.size() > 1 ? group[1] - group[0] : 1};
  if (stride.step < 1) return std::nullopt;
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i] != stride.first + static_cast<int>(i) * stride.step) return std::nullopt;
  }
  return stride;
}

class Nvshmem final : public Communicator {
 public:
  Nvshmem(std::shared_ptr<World> world, NvshmemTeam team, int rank, int size, Settings settings)
      : Communicator(rank, size, settings), world_(std::move(world)), team_(team) {}
  ~Nvshmem() override;

  std::string engine() const override {
    return "nvshmem " + nvshmem_version_text(functions().version);
  }
  Support supports(DType dtype, Reduction reduction) const override {
    return functions().supports(dtype, reduction);
  }
  Support supports_call(std::string_view call) const override {
    for (const char* known : {"all_reduce", "broadcast", "barrier", "split"}) {
      if (call == known) return Support::yes();
    }
    return Support::no(fmt::format(
        "the engine nvshmem has all_reduce, broadcast and barrier; take nccl for {}", call));
  }
  Support supports_groups(std::span<const std::vector<int>> groups) const override;
  void abort(const std::string& reason) override {
    fail(fmt::format("rank {} was aborted, it {}: {}", rank(), progress().text(), reason));
    world_->spoil(failure());
  }
  // Throws where the team is not what was asked for.
  void check_team();

 protected:
  void do_all_reduce(const void* in, void* out, int64_t count, DType dtype, Reduction reduction,
                     void* stream) override;
  void do_broadcast(const void* in, void* out, int64_t count, DType dtype, int root,
                    void* stream) override;
  void do_barrier(void* stream) override {
    world_->device().make_current();
    put(functions().barrier(team_, stream));
  }
  std::unique_ptr<Communicator> do_split(std::span<const std::vector<int>> groups,
                                         const std::vector<int>* group) override;

 private:
  const NvshmemFunctions& functions() const { return world_->functions(); }
  [[noreturn]] void give_up(const std::string& why);
  void put(int status) {
    if (status != 0) give_up(fmt::format("NVSHMEM: status {}", status));
  }
  // Calls `work` with the bytes and their number of each piece. The ranks are in step before each:
  // nobody writes to a rank that still reads the piece before.
  void in_pieces(size_t bytes, size_t element, void* stream,
                 const std::function<void(size_t begin, size_t bytes)>& work);

  const std::shared_ptr<World> world_;
  const NvshmemTeam team_;
};

Nvshmem::~Nvshmem() {
  if (!failure().empty()) {
    world_->spoil(failure());
  } else if (team_ != kNvshmemWorld && team_ != kNoNvshmemTeam) {
    const std::string wrong = world_->call([&functions = functions(), team = team_] {
      functions.destroy_team(team);
      return 0;
    });
    if (!wrong.empty()) world_->spoil("the end of a team: " + wrong);
  }
}

void Nvshmem::give_up(const std::string& why) {
  const std::string text =
      fmt::format("{} on rank {} of {}: {}", current().text(), rank(), size(), why);
  world_->spoil(text);
  const std::string aborted = failure();
  throw CollectiveError(aborted.empty() ? text : aborted);
}

Support Nvshmem::supports_groups(std::span<const std::vector<int>> groups) const {
  for (const std::vector<int>& group : groups) {
    if (stride_of(group)) continue;
    std::string ranks;
    for (const int rank : group) ranks += fmt::format(" {}", rank);
    return Support::no("NVSHMEM makes groups of rising ranks that are equally far apart, not" +
                       ranks);
  }
  return Support::yes();
}

void Nvshmem::check_team() {
  const int team_size = functions().team_size(team_), team_rank = functions().team_rank(team_);
  if (team_size == size() && team_rank == rank()) return;
  const std::string text =
      fmt::format("NVSHMEM made a team of {} ranks, in which this one is {}; it is rank {} of {}",
                  team_size, team_rank, rank(), size());
  fail(text);
  throw CollectiveError(text);
}

void Nvshmem::in_pieces(size_t bytes, size_t element, void* stream,
                        const std::function<void(size_t, size_t)>& work) {
  world_->device().make_current();
  const size_t most = world_->piece_bytes() / element * element;
  if (most == 0) throw InternalError("a piece holds no element");
  for (size_t begin = 0; begin < bytes; begin += most) {
    put(functions().sync(team_, stream));
    work(begin, std::min(most, bytes - begin));
  }
}

void Nvshmem::do_all_reduce(const void* in, void* out, int64_t count, DType dtype,
                            Reduction reduction, void* stream) {
  const size_t element = storage_bytes(dtype, 1);
  const NvshmemReduce reduce = functions().reduce.at({dtype, reduction});
  in_pieces(storage_bytes(dtype, count), element, stream, [&](size_t begin, size_t bytes) {
    world_->device().copy(world_->in(), static_cast<const char*>(in) + begin, bytes, stream);
    // Out of place: below 3.3 it would be wrong in place.
    put(reduce(team_, world_->out(), world_->in(), bytes / element, stream));
    world_->device().copy(static_cast<char*>(out) + begin, world_->out(), bytes, stream);
  });
}

void Nvshmem::do_broadcast(const void* in, void* out, int64_t count, DType dtype, int root,
                           void* stream) {
  in_pieces(storage_bytes(dtype, count), 1, stream, [&](size_t begin, size_t bytes) {
    if (rank() == root) {
      world_->device().copy(world_->in(), static_cast<const char*>(in) + begin, bytes, stream);
    }
    put(functions().broadcast(team_, world_->out(), world_->in(), bytes, root, stream));
    world_->device().copy(static_cast<char*>(out) + begin, world_->out(), bytes, stream);
  });
}

std::unique_ptr<Communicator> Nvshmem::do_split(std::span<const std::vector<int>> groups,
                                                const std::vector<int>* group) {
  NvshmemTeam mine = kNoNvshmemTeam;
  for (const std::vector<int>& each : groups) {
    const auto made = std::make_shared<NvshmemTeam>(kNoNvshmemTeam);
    const std::string wrong = world_->call(
        [&functions = functions(), made, team = team_, stride = *stride_of(each), each] {
          return functions.split(team, stride.first, stride.step, static_cast<int>(each.size()),
                                 nullptr, 0, made.get());
        });
    if (!wrong.empty()) give_up(wrong);
    if (&each == group) mine = *made;
  }
  if (group == nullptr) return nullptr;
  if (mine == kNoNvshmemTeam) give_up("NVSHMEM made no team for the group");
  const auto place = static_cast<int>(std::ranges::find(*group, rank()) - group->begin());
  auto communicator =
      std::make_unique<Nvshmem>(world_, mine, place, static_cast<int>(group->size()), settings());
  communicator->check_team();
  return communicator;
}

}  // namespace

NvshmemId make_nvshmem_id(const NvshmemFunctions& functions) {
  NvshmemId id;
  if (const int status = functions.get_id(&id); status != 0) {
    throw CollectiveError(fmt::format("NVSHMEM makes no id: status {}", status));
  }
  return id;
}

std::unique_ptr<Communicator> make_nvshmem(const NvshmemFunctions& functions, const NvshmemId& id,
                                           int rank, int size, std::shared_ptr<RankDevice> device,
                                           const NvshmemSettings& settings) {
  auto world = std::make_shared<World>(functions, std::move(device), settings);
  // Checks rank, size and deadline before NVSHMEM hears of them.
  auto made = std::make_unique<Nvshmem>(world, kNvshmemWorld, rank, size, settings.common);
  world->start(id, rank, size);
  made->check_team();
  return made;
}

}  // namespace tenon::distributed
