// The ranks of the stub's communicators: threads of one process. What they bring is kept until all
// others have come, and is then done by the last one.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
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
  kReceive,
  kWindow
};

struct World;

// Registered memory.
struct Window {
  const char* begin = nullptr;
  size_t bytes = 0;
};

struct Communicator {
  std::shared_ptr<World> world;
  int rank = 0;
  int pending = 0;  // posts that wait for others
  int error = 0;    // ncclResult_t, for good
  // The handle of a split, or of a window, is written some time after all have called it.
  struct Late {
    void** place = nullptr;
    void* made = nullptr;
    int questions = 0;  // for errors that are asked until then
    bool is_window = false;
  } late = {};
  std::list<Window> windows;
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
  void** made = nullptr;
  Communicator* by = nullptr;
};

struct World {
  explicit World(int size) : collectives(size) {}
  int size() const { return static_cast<int>(collectives.size()); }
  std::vector<std::deque<Post>> collectives;  // by rank
  bool has_windows = true;
  std::map<std::pair<int, int>, std::deque<Post>> sends, receives;
};

void post(const Post& post);
void forget(Communicator& communicator);  // what it posted
int live();                               // how many were made and not released
Communicator* make(std::shared_ptr<World> world, int rank);
void release(Communicator* communicator);
// Whether some communicator has registered this memory.
bool is_registered(const void* memory);
int window_count();
void drop_window(Communicator& of, void* window);

}  // namespace stub_nccl
