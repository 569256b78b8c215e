// libtenon_gloo.so: the only file that knows Gloo. It uses Gloo's connections and its messages
// between two ranks; what collectives make of them is in gloo.cc.
//
// Gloo reads from connections in a thread of its own, where an error of ours would end the process:
// a message that is longer than the memory it is for. Callers rule that out by slots that are made
// of everything both sides must agree on.
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "distributed/gloo/functions.h"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Gloo's texts begin with the place in its source, "[.../pair.cc:598] ".
std::string_view without_place(std::string_view text) {
  const size_t end = text.find("] ");
  return text.starts_with('[') && end != text.npos ? text.substr(end + 2) : text;
}

int report_outcome(tenon_gloo_report* report, int outcome, std::string_view text) {
  report->outcome = outcome;
  text = without_place(text);
  const size_t size = std::min(text.size(), sizeof(report->text) - 1);
  std::memcpy(report->text, text.data(), size);
  report->text[size] = 0;
  return outcome;
}

// A write to a connection that the peer has closed raises SIGPIPE, whose default ends the process.
class NoBrokenPipeSignal {
 public:
  NoBrokenPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipeSignal() {
    const timespec now{};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipeSignal(const NoBrokenPipeSignal&) = delete;
  NoBrokenPipeSignal& operator=(const NoBrokenPipeSignal&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

// The thread that is made meanwhile inherits the mask: the process's signals are not for it.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

// One message, in a buffer of its own: which peer it fails with must be known.
struct Message {
  int peer;
  bool is_sent;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;

  void post(uint64_t slot) const { is_sent ? buffer->send(peer, slot) : buffer->recv(peer, slot); }
  // False: abort() ended it.
  bool wait(milliseconds time) const {
    return is_sent ? buffer->waitSend(time) : buffer->waitRecv(time);
  }
  void end_wait() const { is_sent ? buffer->abortWaitSend() : buffer->abortWaitRecv(); }
};

// Gloo waits for a connection so many times as long as it is told to.
constexpr int kConnectFactor = 5;

// Not below 0: Gloo takes -1 ms for "as long as usual".
milliseconds left_until(Clock::time_point end) {
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(end - Clock::now()));
}

}  // namespace

struct tenon_gloo_device {
  std::shared_ptr<gloo::transport::Device> device;
};

struct tenon_gloo_mesh {
  tenon_gloo_mesh(const tenon_gloo_device& device, int rank, int size, milliseconds timeout)
      : context(device.device->createContext(rank, size)) {
    context->setTimeout(std::max(milliseconds(1), timeout / kConnectFactor));
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) context->createPair(peer);
    }
  }

  int exchange(uint64_t slot, const std::vector<Message>& messages, milliseconds timeout,
               tenon_gloo_report* report) {
    const auto end = Clock::now() + timeout;
    if (!begin(messages)) return report_outcome(report, TENON_GLOO_ABORTED, "");
    report_outcome(report, TENON_GLOO_DONE, "");
    for (const Message& message : messages) {
      if (report->outcome != TENON_GLOO_DONE) break;
      attempt(message, end, report, [&] { return message.post(slot), true; });
    }
    const bool all_posted = report->outcome == TENON_GLOO_DONE;
    for (const Message& message : messages) {
      // When the time is up, the others are asked whether they were done before.
      const bool asks = report->outcome == TENON_GLOO_DONE || report->outcome == TENON_GLOO_LATE;
      if (!all_posted || !asks) break;
      attempt(message, end, report, [&] { return message.wait(left_until(end)); });
    }
    {
      const std::lock_guard lock(mutex_);
      waited_for_ = nullptr;
    }
    if (report->outcome != TENON_GLOO_DONE) close();
    return report->outcome;
  }

  void abort() {
    {
      const std::lock_guard lock(mutex_);
      aborted_ = true;
      if (waited_for_ != nullptr) {
        for (const Message& message : *waited_for_) message.end_wait();
      }
    }
    close();
  }

  void close() {
    for (int peer = 0; peer < context->size; ++peer) {
      if (const auto& pair = context->getPair(peer); pair != nullptr) pair->close();
    }
  }

  const std::shared_ptr<gloo::transport::Context> context;

 private:
  bool begin(const std::vector<Message>& messages) {
    const std::lock_guard lock(mutex_);
    if (!aborted_) waited_for_ = &messages;
    return !aborted_;
  }

  bool is_aborted() {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }

  // The first failure is the one to report, with all peers that are late with it.
  void attempt(const Message& message, Clock::time_point end, tenon_gloo_report* report,
               const std::function<bool()>& step) {
    std::string why;
    try {
      if (step()) return;
    } catch (const std::exception& error) {
      why = error.what();
    }
    report->failed[message.peer] = 1;
    if (report->outcome != TENON_GLOO_DONE) return;
    const int outcome = is_aborted()         ? TENON_GLOO_ABORTED
                        : Clock::now() < end ? TENON_GLOO_BROKEN
                                             : TENON_GLOO_LATE;
    report_outcome(report, outcome, why);
  }

  std::mutex mutex_;
  bool aborted_ = false;
  const std::vector<Message>* waited_for_ = nullptr;
};

namespace {

// What `make` makes; null, with a report, where it throws.
template <typename Make>
auto made(tenon_gloo_report* report, const Make& make) -> decltype(make()) {
  try {
    return make();
  } catch (const std::exception& error) {
    report_outcome(report, TENON_GLOO_REFUSED, error.what());
    return nullptr;
  }
}

// Gloo's thread leaves a connection alone whose lock another thread has, and asks for its events
// again at once. Where it preempted that thread it would so spin through its time slice: on as many
// cores as ranks a step took ten times as long. A batch thread preempts nobody, and gets its share.
std::shared_ptr<gloo::transport::Device> make_device(const char* address) {
  std::shared_ptr<gloo::transport::Device> device;
  std::exception_ptr failed;
  std::thread([&] {
    const sched_param none{};
    (void)::sched_setscheduler(0, SCHED_BATCH, &none);  // of this thread; Gloo's inherits it
    try {
      device = gloo::transport::tcp::CreateDevice(address);
    } catch (...) {
      failed = std::current_exception();
    }
  }).join();
  if (failed) std::rethrow_exception(failed);
  return device;
}

tenon_gloo_device* open_device(const char* address, tenon_gloo_report* report) {
  return made(report, [&] {
    const NoSignals inherited;
    return new tenon_gloo_device{make_device(address)};
  });
}

tenon_gloo_mesh* make_mesh(tenon_gloo_device* device, int rank, int size, int64_t timeout_ms,
                           tenon_gloo_report* report) {
  return made(report,
              [&] { return new tenon_gloo_mesh(*device, rank, size, milliseconds(timeout_ms)); });
}

size_t address_for(tenon_gloo_mesh* mesh, int peer, char* bytes, size_t capacity) {
  try {
    const std::vector<char> address = mesh->context->getPair(peer)->address().bytes();
    std::copy_n(address.begin(), std::min(address.size(), capacity), bytes);
    return address.size();
  } catch (const std::exception&) {
    return 0;
  }
}

int connect_to(tenon_gloo_mesh* mesh, int peer, const char* bytes, size_t size,
               tenon_gloo_report* report) {
  const auto end = Clock::now() + mesh->context->getTimeout() * kConnectFactor;
  try {
    mesh->context->getPair(peer)->connect(std::vector<char>(bytes, bytes + size));
    return report_outcome(report, TENON_GLOO_DONE, "");
  } catch (const std::exception& error) {
    report->failed[peer] = 1;
    return report_outcome(report, Clock::now() < end ? TENON_GLOO_BROKEN : TENON_GLOO_LATE,
                          error.what());
  }
}

int exchange(tenon_gloo_mesh* mesh, uint64_t slot, const tenon_gloo_transfer* receives,
             size_t receive_count, const tenon_gloo_transfer* sends, size_t send_count,
             int64_t timeout_ms, tenon_gloo_report* report) {
  const NoBrokenPipeSignal quiet;
  try {
    std::vector<Message> messages;
    messages.reserve(receive_count + send_count);
    for (size_t i = 0; i < receive_count + send_count; ++i) {
      const bool is_sent = i >= receive_count;
      const tenon_gloo_transfer& one = is_sent ? sends[i - receive_count] : receives[i];
      messages.push_back(
          {one.peer, is_sent, mesh->context->createUnboundBuffer(one.memory, one.bytes)});
    }
    return mesh->exchange(slot, messages, milliseconds(timeout_ms), report);
  } catch (const std::exception& error) {
    return report_outcome(report, TENON_GLOO_REFUSED, error.what());
  }
}

constexpr tenon_gloo_functions kFunctions{
    .open_device = open_device,
    .close_device = [](tenon_gloo_device* device) { delete device; },
    .make_mesh = make_mesh,
    .address_for = address_for,
    .connect = connect_to,
    .exchange = exchange,
    .abort = [](tenon_gloo_mesh* mesh) { mesh->abort(); },
    .destroy_mesh = [](tenon_gloo_mesh* mesh) { delete mesh; },
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const tenon_gloo_functions* tenon_gloo_table(
    int table) {
  return table == TENON_GLOO_TABLE ? &kFunctions : nullptr;
}
