// CUDA graphs of one run state: each holds the launches of one shape for one set of the caller's
// addresses. Bounded in number; a shape that came once is not captured.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/stream.h"
#include "kernels/running/shape_instance.h"

namespace tenon::kernels {

class CapturedRuns {
 public:
  // Launches what `enqueue` puts on the stream it is given: by a graph where one fits or is worth
  // capturing, else directly. True: by a graph. What cannot be captured (a library may find out
  // only then) is launched directly from then on.
  bool run(const std::shared_ptr<device::Device>& device, device::Stream& stream,
           const std::shared_ptr<const ShapeInstance>& instance,
           const std::vector<device::Address>& callers,
           const std::function<void(device::Stream&)>& enqueue);
  // Captures and instantiates what `enqueue` puts on a stream before there is a Run: the first one
  // of this shape then has only addresses to change.
  void prepare(const std::shared_ptr<device::Device>& device,
               const std::shared_ptr<const ShapeInstance>& instance,
               const std::function<void(device::Stream&)>& enqueue);
  // Addresses that graphs hold have changed.
  void forget() { graphs_.clear(); }

  size_t size() const { return graphs_.size(); }
  // Why nothing is captured any more; empty: it is.
  const std::string& refusal() const { return refusal_; }

 private:
  struct Captured {
    std::shared_ptr<const ShapeInstance> instance;
    std::vector<device::Address> callers;
    std::unique_ptr<device::Graph> graph;  // null: seen once
  };
  Captured* find(const ShapeInstance* instance, const std::vector<device::Address>& callers);
  Captured& place_for(const std::shared_ptr<const ShapeInstance>& instance);
  const device::Graph& recapture(Captured& place, const std::shared_ptr<device::Device>& device,
                                 const std::function<void(device::Stream&)>& enqueue);
  device::GraphHandle capture(const std::shared_ptr<device::Device>& device,
                              const std::function<void(device::Stream&)>& enqueue);

  static constexpr size_t kGraphsPerShape = 4, kGraphs = 32;
  std::unique_ptr<device::Stream> recorder_;  // capture never disturbs the caller's stream
  std::vector<Captured> graphs_;              // most recent first
  std::string refusal_;
};

}  // namespace tenon::kernels
