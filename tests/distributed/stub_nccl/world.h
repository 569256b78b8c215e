// The ranks of the stub's communicators: threads of one process. What they bring is kept until all
// others have come, and is then done by the last one.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/dtype.h"

namespace stub_nccl {

enum class Kind {
  kInit,
  kSplit,
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kSend,
  kReceive
};

struct World;

struct Communicator {
  std::shared_ptr<World> world;
  int rank = 0;
  int pending = 0;  // posts that wait for others
  int error = 0;    // ncclResult_t, for good
  // The handle of a split is written some time after all have called it.
  struct Late {
    Communicator** place = nullptr;
    Communicator* made = nullptr;
    int questions = 0;  // for errors that are asked until then
  } late = {};
  int state() const;
};

struct Post {
  Kind kind{};
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  int type = 0, operation = 0;
  int root = 0;  // or peer, or color
  int key = 0;
  Communicator** made = nullptr;
  Communicator* by = nullptr;
};

struct World {
  explicit World(int size) : collectives(size) {}
  int size() const { return static_cast<int>(collectives.size()); }
  std::vector<std::deque<Post>> collectives;  // by rank
  std::map<std::pair<int, int>, std::deque<Post>> sends, receives;
};

void post(const Post& post);
void forget(Communicator& communicator);  // what it posted
int live();                               // how many were made and not released
Communicator* make(std::shared_ptr<World> world, int rank);
void release(Communicator* communicator);

}  // namespace stub_nccl
