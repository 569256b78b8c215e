// Everything that the stub driver knows, behind one lock: devices, memory, streams, events, graphs,
// modules, the script and the findings.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "codegen/interpret.h"
#include "kernels/device/description.h"
#include "tests/kernels/device/stub/launch_window.h"
#include "tests/kernels/device/stub/memory.h"
#include "tests/kernels/device/stub/order.h"
#include "tests/kernels/device/stub/script.h"

namespace tenon::stub {

inline constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3,
                        kNoDevice = 100, kInvalidDevice = 101, kInvalidContext = 201,
                        kInvalidPtx = 218, kInvalidHandle = 400, kNotFound = 500, kNotReady = 600,
                        kIllegalAddress = 700, kOutOfResources = 701, kMisaligned = 716,
                        kCaptureUnsupported = 900, kCaptureInvalidated = 901,
                        kCaptureUnmatched = 903, kCaptureUnjoined = 904, kCapturedEvent = 907,
                        kUpdateFailure = 910, kUnknown = 999;

struct Capture;

struct Stream {
  int number = 0, device = 0;
  bool hung = false;
  Clock clock;
  std::shared_ptr<Capture> capture;
};

struct Event {
  int device = 0;
  bool timed = false, recorded = false, hung = false;
  Clock clock;
  std::shared_ptr<Capture> capture;  // recorded in a stream that was being captured
  std::chrono::steady_clock::time_point time;
};

struct Work {
  std::string name;
  std::vector<Access> accesses;
  bool at_once = false;  // reads or writes pageable host memory: the call returns when it is done
  bool is_launch = false, pdl = false;
  // Of a launch: null, or how the memory of launches that overlap looks to it.
  std::function<void(codegen::LaunchMemory*)> run;
};

// Work that a lazy stream has not done yet, and what must be done before it.
struct Pending {
  int64_t stamp = 0;
  Clock after;
  Work work;
};

struct Graph {
  int device = 0;
  std::vector<Work> work;
};

struct Capture {
  Stream* origin = nullptr;
  std::thread::id thread;
  int mode = 0;
  bool broken = false;
  Graph graph;
  AccessHistory history;
  std::map<Stream*, Clock> before;  // clocks of its streams, put back when it ends
};

struct Module;    // modules.cc
struct Function;  // modules.cc

struct DeviceState {
  int number = 0;
  device::Description description;
  long retained = 0;
  size_t used = 0, limit = 0;
  Result lost = kSuccess;
  Stream default_stream;
};

// Live objects by handle. The last thousand dead ones stay, so that no handle comes back as another
// while someone may still hold it.
template <typename T>
class Handles {
 public:
  T* add(std::unique_ptr<T> object) {
    T* const handle = object.get();
    live_.insert(handle);
    objects_.emplace(handle, std::move(object));
    return handle;
  }
  bool has(const void* handle) const { return live_.contains(handle); }
  bool remove(const void* handle) {
    if (live_.erase(handle) == 0) return false;
    dead_.push_back(handle);
    if (dead_.size() > kRemembered) {
      objects_.erase(dead_.front());
      dead_.pop_front();
    }
    return true;
  }
  const std::set<const void*>& live() const { return live_; }

 private:
  static constexpr size_t kRemembered = 1000;
  std::set<const void*> live_;
  std::map<const void*, std::shared_ptr<T>> objects_;
  std::deque<const void*> dead_;
};

struct World {
  std::recursive_mutex mutex;
  Script script;
  std::map<std::string, long> calls, calls_since_script;
  long streams_since_script = 0;
  std::vector<std::string> findings;
  bool initialized = false;

  std::vector<std::unique_ptr<DeviceState>> devices;
  AddressSpace memory;
  std::multiset<Address> mapped;  // memory of other processes, which are threads of this one
  AccessHistory history;
  Clock host;
  std::map<int, std::deque<Pending>> pending;  // by the number of the stream
  std::map<int, LaunchWindow> windows;         // likewise
  unsigned launches_sampled = 0;
  int streams_made = 0;
  std::deque<int> dead_streams;  // still remembered by what they touched
  Handles<Stream> streams;
  Handles<Event> events;
  Handles<Graph> graphs, graph_execs;
  Handles<Module> modules;
  Handles<Function> functions;
  std::vector<std::shared_ptr<Capture>> captures;  // under way

  void report(std::string finding);
  void make_devices();
  std::string alive(int device) const;  // of one device, or of all: -1
};
World& world();

// What a call needs before it does anything.
enum Need : unsigned { kNothing = 0, kInit = 1, kContext = 2 | kInit, kNoCapture = 4 };

// The calling thread's device; the body of a call that needs a context may rely on it.
DeviceState& current_device();
void set_current_device(DeviceState* device);

// Counts the call, answers as the script wants, else runs the body under the lock.
Result call(const char* function, unsigned needs, const std::function<Result(World&)>& body);

// Ends the process where no call may come any more: after exit has begun, or in a forked child.
void refuse_out_of_time(const char* function);

// Does the work in the stream's order, or notes it where the stream is being captured.
Result enqueue(World& world, Stream& stream, Work work);
// Does what is pending: of one stream up to a count, or all that a clock says.
void finish(World& world, int stream, int64_t stamp);
void finish(World& world, const Clock& clock);
void finish_everything(World& world);
Result replay(World& world, Stream& stream, const Graph& graph);

// The memory behind [address, address + bytes), or a finding.
const Allocation* audit(World& world, const std::string& work, std::string_view what,
                        Address address, size_t bytes);

// Null with a finding where the handle is no live stream.
Stream* find_stream(World& world, device::StreamHandle handle, const char* function);

}  // namespace tenon::stub
