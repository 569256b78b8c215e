#include "distributed/loopback.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "distributed/element_ops.h"
#include "distributed/meeting_point.h"

namespace tenon::distributed {
namespace {

using Offer = MeetingPoint::Offer;
using Offers = MeetingPoint::Offers;

const char* at(const void* memory, DType dtype, int64_t element) {
  return static_cast<const char*>(memory) + storage_bytes(dtype, element);
}
char* at(void* memory, DType dtype, int64_t element) {
  return static_cast<char*>(memory) + storage_bytes(dtype, element);
}

// in and out may be the same memory.
void copy(void* to, const void* from, DType dtype, int64_t count) {
  if (count > 0) std::memmove(to, from, storage_bytes(dtype, count));
}

std::vector<const void*> inputs(const Offers& offers, DType dtype, int64_t begin) {
  std::vector<const void*> inputs;
  for (const Offer* offer : offers) inputs.push_back(at(offer->in, dtype, begin));
  return inputs;
}

class Loopback final : public Communicator {
 public:
  Loopback(std::shared_ptr<MeetingPoint> point, int rank, int size, Settings settings)
      : Communicator(rank, size, settings), point_(std::move(point)) {
    point_->enter(rank, [this] { return progress().text(); });
  }
  ~Loopback() override { point_->leave(rank()); }

  std::string engine() const override { return "loopback"; }

  void abort(const std::string& reason) override {
    const std::string why =
        fmt::format("rank {} was aborted, it {}: {}", rank(), progress().text(), reason);
    fail(why);
    point_->fail(why);
  }

 protected:
  void do_all_reduce(const void* in, void* out, int64_t count, DType dtype, Reduction reduction,
                     void*) override {
    meet({in, out, {}}, [&](const Offers& offers) {
      reduce_elements(dtype, reduction, inputs(offers, dtype, 0), offers[0]->out, count);
      for (const Offer* offer : offers) copy(offer->out, offers[0]->out, dtype, count);
    });
  }

  void do_all_gather(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                     void*) override {
    meet({in, out, {}}, [&](const Offers& offers) {
      int64_t begin = 0;
      for (size_t from = 0; from < offers.size(); ++from) {
        for (const Offer* to : offers) {
          copy(at(to->out, dtype, begin), offers[from]->in, dtype, counts[from]);
        }
        begin += counts[from];
      }
    });
  }

  void do_reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                         Reduction reduction, void*) override {
    meet({in, out, {}}, [&](const Offers& offers) {
      int64_t begin = 0;
      for (size_t to = 0; to < offers.size(); ++to) {
        reduce_elements(dtype, reduction, inputs(offers, dtype, begin), offers[to]->out,
                        counts[to]);
        begin += counts[to];
      }
    });
  }

  void do_broadcast(const void* in, void* out, int64_t count, DType dtype, int root,
                    void*) override {
    meet({in, out, {}}, [&](const Offers& offers) {
      for (const Offer* offer : offers) copy(offer->out, offers[root]->in, dtype, count);
    });
  }

  void do_all_to_all(const void* in, void* out, int64_t count, DType dtype, void*) override {
    meet({in, out, {}}, [&](const Offers& offers) {
      for (size_t from = 0; from < offers.size(); ++from) {
        for (size_t to = 0; to < offers.size(); ++to) {
          copy(at(offers[to]->out, dtype, static_cast<int64_t>(from) * count),
               at(offers[from]->in, dtype, static_cast<int64_t>(to) * count), dtype, count);
        }
      }
    });
  }

  void do_permute(const void* in, void* out, int64_t count, DType dtype,
                  std::span<const std::pair<int, int>> pairs, void*) override {
    meet({in, out, {}}, [&](const Offers& offers) {
      for (const Offer* offer : offers) std::memset(offer->out, 0, storage_bytes(dtype, count));
      for (const auto& [source, target] : pairs) {
        copy(offers[target]->out, offers[source]->in, dtype, count);
      }
    });
  }

  void do_send(const void* in, int64_t, DType, int to, void*) override {
    Offer offer{in, nullptr, {}};
    point_->pass(rank(), to, true, current(), offer);
  }

  void do_receive(void* out, int64_t, DType, int from, void*) override {
    Offer offer{nullptr, out, {}};
    point_->pass(from, rank(), false, current(), offer);
  }

  void do_barrier(void*) override {
    meet({}, [](const Offers&) {});
  }

  std::unique_ptr<Communicator> do_split(std::span<const std::vector<int>> groups,
                                         const std::vector<int>* group) override {
    Offer offer;
    point_->meet(rank(), current(), offer, [&](const Offers& offers) {
      for (const std::vector<int>& members : groups) {
        const auto child =
            std::make_shared<MeetingPoint>(static_cast<int>(members.size()), settings().deadline);
        for (const int member : members) offers[member]->child = child;
      }
    });
    if (group == nullptr) return nullptr;
    const auto place = std::ranges::find(*group, rank()) - group->begin();
    return std::make_unique<Loopback>(offer.child, static_cast<int>(place),
                                      static_cast<int>(group->size()), settings());
  }

 private:
  void meet(Offer offer, const std::function<void(const Offers&)>& work) {
    point_->meet(rank(), current(), offer, work);
  }

  const std::shared_ptr<MeetingPoint> point_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_loopback(int size,
                                                         Communicator::Settings settings) {
  if (size < 1) throw UserError(fmt::format("{} ranks were asked for, one is the least", size));
  const auto point = std::make_shared<MeetingPoint>(size, settings.deadline);
  std::vector<std::unique_ptr<Communicator>> made;
  made.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    made.push_back(std::make_unique<Loopback>(point, rank, size, settings));
  }
  return made;
}

}  // namespace tenon::distributed
