// Launches as events of the runtime's profile, each with the ONNX nodes that it came from.
#pragma once

#include <onnxruntime_c_api.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/running/executable.h"

namespace tenon::provider {

class Profiler : public OrtEpProfilerImpl {
 public:
  using Time = kernels::LaunchObserver::Time;
  struct Event {
    std::string name, kind, nodes;
    Time start, end;
    int thread = 0;
  };

  Profiler();
  // The one that follows the runtime's current event on this thread; null: nobody profiles.
  static Profiler* current();
  void add(Event event);

 private:
  void send(OrtProfilingEventsContainer& container);

  std::mutex mutex_;
  Time started_{};
  int64_t offset_ns_ = 0;  // of our start after the runtime's
  std::vector<Event> events_;
};

// What a partition's launches are called in a profile.
class LaunchNames {
 public:
  LaunchNames(const std::vector<kernels::FusionReport>& fusions,
              const std::vector<std::string>& node_names);

  class Observer : public kernels::LaunchObserver {
   public:
    Observer(const LaunchNames& names, Profiler& profiler) : names_(names), profiler_(profiler) {}
    void launched(const std::string& fusion, Time start, Time end) override;

   private:
    const LaunchNames& names_;
    Profiler& profiler_;
  };

 private:
  struct Fusion {
    std::string kind, nodes;
  };
  std::map<std::string, Fusion> fusions_;
};

}  // namespace tenon::provider
