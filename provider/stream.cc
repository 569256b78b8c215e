#include "provider/stream.h"

#include <algorithm>
#include <utility>

#include "provider/api.h"
#include "provider/guard.h"

namespace tenon::provider {
namespace {

class Notification : public OrtSyncNotificationImpl {
 public:
  Notification(std::shared_ptr<device::Device> device, device::Stream& producer)
      : OrtSyncNotificationImpl{},
        device_(std::move(device)),
        producer_(producer),
        event_(device_) {
    ort_version_supported = runtime().version;
    Release = [](OrtSyncNotificationImpl* it) noexcept { delete static_cast<Notification*>(it); };
    Activate = [](OrtSyncNotificationImpl* it) noexcept {
      return guarded([&] { self(it).producer_.record(self(it).event_); });
    };
    WaitOnDevice = [](OrtSyncNotificationImpl* it, OrtSyncStream* consumer) noexcept {
      return guarded([&] { self(it).make_wait(*consumer); });
    };
    WaitOnHost = [](OrtSyncNotificationImpl* it) noexcept {
      return guarded([&] { self(it).event_.synchronize(); });
    };
  }

 private:
  static Notification& self(OrtSyncNotificationImpl* it) { return *static_cast<Notification*>(it); }

  void make_wait(OrtSyncStream& consumer) {
    void* handle = runtime().api->SyncStream_GetHandle(&consumer);
    device::Stream(device_, static_cast<device::StreamHandle>(handle)).wait(event_);
  }

  std::shared_ptr<device::Device> device_;
  device::Stream& producer_;
  device::Event event_;
};

std::vector<device::StreamHandle>& noted_streams() {
  thread_local std::vector<device::StreamHandle> streams;
  return streams;
}

SyncStream& self(OrtSyncStreamImpl* stream) { return *static_cast<SyncStream*>(stream); }

}  // namespace

SyncStream::SyncStream(Gpu& gpu, std::shared_ptr<device::Device> device,
                       std::optional<device::StreamHandle> borrowed,
                       std::chrono::milliseconds deadline)
    : OrtSyncStreamImpl{},
      gpu_(gpu),
      device_(std::move(device)),
      deadline_(deadline),
      stream_(borrowed ? device::Stream(device_, *borrowed) : device::Stream(device_)) {
  ort_version_supported = runtime().version;
  Release = [](OrtSyncStreamImpl* stream) noexcept { delete &self(stream); };
  GetHandle = [](OrtSyncStreamImpl* stream) noexcept -> void* {
    return self(stream).stream_.handle();
  };
  CreateNotification = [](OrtSyncStreamImpl* stream,
                          OrtSyncNotificationImpl** notification) noexcept {
    *notification = nullptr;
    return guarded([&] { *notification = self(stream).notification(); });
  };
  Flush = [](OrtSyncStreamImpl* stream) noexcept { return guarded([&] { self(stream).flush(); }); };
  OnSessionRunEnd = [](OrtSyncStreamImpl*) noexcept -> OrtStatus* { return nullptr; };
  gpu_.add(stream_);
}

SyncStream::~SyncStream() { gpu_.remove(stream_); }

void note_stream(device::StreamHandle stream) {
  if (std::ranges::find(noted_streams(), stream) == noted_streams().end()) {
    noted_streams().push_back(stream);
  }
}

const std::vector<device::StreamHandle>& take_noted_streams() {
  thread_local std::vector<device::StreamHandle> taken;
  taken.clear();
  taken.swap(noted_streams());  // both keep their memory: a warm Run allocates nothing
  return taken;
}

void SyncStream::flush() {
  // Waiting would break a capture, and nothing of it has run yet.
  if (!stream_.capturing()) stream_.synchronize(deadline_);
}

OrtSyncNotificationImpl* SyncStream::notification() { return new Notification(device_, stream_); }

}  // namespace tenon::provider
