#include "tests/distributed/stub_nccl/world.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "distributed/element_ops.h"

namespace stub_nccl {
namespace {

using tenon::DType;
using tenon::storage_bytes;
using tenon::distributed::Reduction;

constexpr int kInvalidUsage = 5, kInProgress = 7;

constexpr DType kTypes[] = {DType::kI8,  DType::kU8,   DType::kI32,      DType::kU32,
                            DType::kI64, DType::kU64,  DType::kF16,      DType::kF32,
                            DType::kF64, DType::kBF16, DType::kF8E4M3FN, DType::kF8E5M2};
constexpr Reduction kOperations[] = {Reduction::kSum, Reduction::kProd, Reduction::kMax,
                                     Reduction::kMin, Reduction::kAverage};

int live_count = 0;
std::set<Communicator*> all;  // live ones

using Posts = std::vector<Post>;  // of one collective, by rank

size_t bytes(const Post& post, size_t count) {
  return storage_bytes(kTypes[post.type], static_cast<int64_t>(count));
}

void reduce(const Posts& posts, size_t begin, size_t count, void* out) {
  std::vector<const void*> inputs;
  for (const Post& post : posts) {
    inputs.push_back(static_cast<const char*>(post.in) + bytes(post, begin));
  }
  tenon::distributed::reduce_elements(kTypes[posts[0].type], kOperations[posts[0].operation],
                                      inputs, out, static_cast<int64_t>(count));
}

void copy(const Post& to, size_t to_begin, const Post& from, size_t from_begin, size_t count) {
  std::memmove(static_cast<char*>(to.out) + bytes(to, to_begin),
               static_cast<const char*>(from.in) + bytes(from, from_begin), bytes(from, count));
}

void split(const Posts& posts) {
  std::map<int, std::vector<Post>> groups;
  for (const Post& post : posts) {
    if (post.root >= 0) groups[post.root].push_back(post);
  }
  for (auto& [color, members] : groups) {
    std::ranges::stable_sort(members, {}, &Post::key);
    const auto world = std::make_shared<World>(static_cast<int>(members.size()));
    for (size_t rank = 0; rank < members.size(); ++rank) {
      members[rank].by->late = {members[rank].made, make(world, static_cast<int>(rank)), 3, false};
    }
  }
}

void make_windows(const Posts& posts) {
  for (const Post& post : posts) {
    if (!post.by->world->has_windows) continue;  // and NCCL says nothing
    post.by->windows.push_back({static_cast<const char*>(post.in), post.count});
    post.by->late = {post.made, &post.by->windows.back(), 3, true};
  }
}

// How far from the begin of a window, where it is in one.
std::optional<size_t> place_in_window(const Communicator& of, const void* memory) {
  const auto* address = static_cast<const char*>(memory);
  for (const Window& window : of.windows) {
    if (address >= window.begin && address < window.begin + window.bytes) {
      return address - window.begin;
    }
  }
  return std::nullopt;
}

// Kernels for windows take a peer's memory to be where their own is.
bool are_symmetric(const Posts& posts) {
  return std::ranges::all_of(posts, [&](const Post& post) {
    return place_in_window(*post.by, post.in) == place_in_window(*posts[0].by, posts[0].in) &&
           place_in_window(*post.by, post.out) == place_in_window(*posts[0].by, posts[0].out);
  });
}

void run(const Posts& posts) {
  const size_t count = posts[0].count, ranks = posts.size();
  const auto root = static_cast<size_t>(posts[0].root);
  switch (posts[0].kind) {
    case Kind::kSplit:
      return split(posts);
    case Kind::kWindow:
      return make_windows(posts);
    case Kind::kAllReduce:
      reduce(posts, 0, count, posts[0].out);
      for (const Post& to : posts) std::memmove(to.out, posts[0].out, bytes(to, count));
      return;
    case Kind::kReduce:
      return reduce(posts, 0, count, posts[root].out);
    case Kind::kReduceScatter:
      for (size_t to = 0; to < ranks; ++to) reduce(posts, to * count, count, posts[to].out);
      return;
    case Kind::kBroadcast:
      for (const Post& to : posts) copy(to, 0, posts[root], 0, count);
      return;
    case Kind::kAllGather:
    case Kind::kAllToAll:
      for (size_t from = 0; from < ranks; ++from) {
        for (size_t to = 0; to < ranks; ++to) {
          const size_t begin = posts[0].kind == Kind::kAllToAll ? to * count : 0;
          copy(posts[to], from * count, posts[from], begin, count);
        }
      }
      return;
    case Kind::kInit:
    case Kind::kSend:
    case Kind::kReceive:
      return;
  }
}

bool agree(const Post& a, const Post& b) {
  const bool same_root = a.root == b.root || a.kind == Kind::kSplit;
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.operation == b.operation &&
         same_root;
}

void post_collective(const Post& post) {
  World& world = *post.by->world;
  world.collectives[post.by->rank].push_back(post);
  ++post.by->pending;
  Posts posts;
  for (const auto& queue : world.collectives) {
    if (queue.empty()) return;
    posts.push_back(queue.front());
  }
  for (auto& queue : world.collectives) queue.pop_front();
  const bool same = std::ranges::all_of(posts, [&](const Post& p) { return agree(p, posts[0]); }) &&
                    (posts[0].kind != Kind::kAllReduce || are_symmetric(posts));
  if (same) run(posts);
  for (const Post& done : posts) {
    --done.by->pending;
    if (!same) done.by->error = kInvalidUsage;
  }
}

void post_message(const Post& post) {
  World& world = *post.by->world;
  const bool sends = post.kind == Kind::kSend;
  const std::pair<int, int> way{sends ? post.by->rank : post.root,
                                sends ? post.root : post.by->rank};
  auto& others = (sends ? world.receives : world.sends)[way];
  if (others.empty()) {
    (sends ? world.sends : world.receives)[way].push_back(post);
    ++post.by->pending;
    return;
  }
  const Post other = others.front();
  others.pop_front();
  --other.by->pending;
  if (other.count != post.count) {
    other.by->error = post.by->error = kInvalidUsage;
    return;
  }
  sends ? copy(other, 0, post, 0, post.count) : copy(post, 0, other, 0, post.count);
}

}  // namespace

int Communicator::state() const {
  if (error != 0) return error;
  return pending > 0 || late.place != nullptr ? kInProgress : 0;
}

void post(const Post& post) {
  post.kind == Kind::kSend || post.kind == Kind::kReceive ? post_message(post)
                                                          : post_collective(post);
}

void forget(Communicator& communicator) {
  const auto forget_in = [&](std::deque<Post>& queue) {
    std::erase_if(queue, [&](const Post& post) { return post.by == &communicator; });
  };
  for (auto& queue : communicator.world->collectives) forget_in(queue);
  for (auto& [way, queue] : communicator.world->sends) forget_in(queue);
  for (auto& [way, queue] : communicator.world->receives) forget_in(queue);
}

int live() { return live_count; }

Communicator* make(std::shared_ptr<World> world, int rank) {
  ++live_count;
  auto* made = new Communicator;
  made->world = std::move(world);
  made->rank = rank;
  all.insert(made);
  return made;
}

void release(Communicator* communicator) {
  forget(*communicator);
  if (communicator->late.made != nullptr && !communicator->late.is_window) {
    release(static_cast<Communicator*>(communicator->late.made));
  }
  all.erase(communicator);
  delete communicator;
  --live_count;
}

bool is_registered(const void* memory) {
  return std::ranges::any_of(
      all, [&](const Communicator* each) { return place_in_window(*each, memory).has_value(); });
}

int window_count() {
  size_t count = 0;
  for (const Communicator* each : all) count += each->windows.size();
  return static_cast<int>(count);
}

void drop_window(Communicator& of, void* window) {
  of.windows.remove_if([&](const Window& each) { return &each == window; });
}

}  // namespace stub_nccl
