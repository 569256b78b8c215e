#include "kernels/device/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "kernels/device/bytes_text.h"

namespace tenon::device {
namespace {

constexpr size_t kAlignment = 256, kBlockStep = 2 << 20, kLargestSpare = 64 << 20;
constexpr std::chrono::milliseconds kLongestWait(1000);  // for a stream that may hang

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

// Who may use a free piece: everyone, or at once only the stream that freed it. The event is
// recorded late, when someone else first wants the memory: a warm run frees without driver calls.
struct Owner {
  StreamHandle stream = nullptr;
  bool everyone = false;
  bool foreign = false;      // the stream may be gone: StreamEnd::kForeign
  bool stream_gone = false;  // the event was the last thing recorded on it
  std::unique_ptr<Event> event;
  bool recorded = false;
  int64_t covers = 0;                           // frees up to this one precede the event
  std::set<std::pair<size_t, uintptr_t>> free;  // by size, then address
};

struct Piece {
  size_t bytes = 0;
  uintptr_t block = 0;
  std::shared_ptr<Owner> owner;
  bool free = true;
  int64_t freed_as = 0;  // number of the free
};

class BestFitArena final : public Arena {
 public:
  BestFitArena(std::shared_ptr<Device> device, MemoryKind kind, size_t limit)
      : device_(std::move(device)), kind_(kind), limit_(limit) {
    everyone_->everyone = true;
    stats_.limit = static_cast<int64_t>(limit);
  }

  ~BestFitArena() override {
    for (const auto& [base, bytes] : blocks_) release_block(base);
  }

  void* allocate(size_t bytes, StreamHandle stream, StreamEnd end) override {
    if (bytes == 0) return nullptr;
    if (bytes > SIZE_MAX - kBlockStep) throw_over_limit(bytes);
    const size_t wanted = round_up(bytes, kAlignment);
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<Owner> owner = owner_of(stream, end);
    Pieces::iterator piece = find(wanted, *owner);
    if (piece == pieces_.end()) {
      collect(/*wait=*/false);
      piece = find(wanted, *owner);
    }
    if (piece == pieces_.end()) piece = grow(wanted, *owner);
    return take(piece, wanted, owner);
  }

  void release(void* memory) noexcept override {
    if (memory == nullptr) return;
    const std::lock_guard lock(mutex_);
    const auto piece = pieces_.find(reinterpret_cast<uintptr_t>(memory));
    if (piece == pieces_.end() || piece->second.free) return;
    stats_.in_use -= static_cast<int64_t>(piece->second.bytes);
    piece->second.freed_as = ++frees_;
    put_back(piece);
  }

  void forget(StreamHandle stream) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto entry = owners_.find(stream);
    if (stream == nullptr || entry == owners_.end()) return;
    const std::shared_ptr<Owner> owner = entry->second;
    owners_.erase(entry);
    try {
      owner->covers = INT64_MAX;  // what is freed later was used before, too
      record(*owner);
      owner->stream_gone = true;
      gone_.push_back(owner);
    } catch (const std::exception&) {
      // No event can be had: the pieces stay with a stream that nobody asks for. On a lost device
      // that does not matter, and otherwise the block goes back with the arena.
    }
  }

  void shrink() override {
    const std::lock_guard lock(mutex_);
    collect(/*wait=*/true);
    release_free_blocks();
  }

  ArenaStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  using Pieces = std::map<uintptr_t, Piece>;

  std::shared_ptr<Owner> owner_of(StreamHandle stream, StreamEnd end) {
    if (stream == nullptr) return everyone_;
    auto& owner = owners_[stream];
    if (owner == nullptr) {
      owner = std::make_shared<Owner>();
      owner->stream = stream;
      owner->foreign = end == StreamEnd::kForeign;
    }
    return owner;
  }

  // The smallest piece that fits; the stream's own before one of everyone's of the same size.
  Pieces::iterator find(size_t wanted, const Owner& owner) {
    const auto own = owner.free.lower_bound({wanted, 0});
    const auto shared = everyone_->free.lower_bound({wanted, 0});
    const bool has_own = own != owner.free.end(), has_shared = shared != everyone_->free.end();
    if (!has_own && !has_shared) return pieces_.end();
    const bool take_own = has_own && (!has_shared || own->first <= shared->first);
    return pieces_.find(take_own ? own->second : shared->second);
  }

  void* take(Pieces::iterator piece, size_t wanted, const std::shared_ptr<Owner>& owner) {
    unlist(piece);
    if (const size_t rest = piece->second.bytes - wanted; rest > 0) {
      Piece remainder = piece->second;
      remainder.bytes = rest;
      piece->second.bytes = wanted;
      list(pieces_.emplace(piece->first + wanted, std::move(remainder)).first);
    }
    piece->second.free = false;
    piece->second.owner = owner;
    stats_.in_use += static_cast<int64_t>(wanted);
    stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
    ++stats_.allocations;
    return reinterpret_cast<void*>(piece->first);
  }

  void list(Pieces::iterator piece) {
    piece->second.free = true;
    piece->second.owner->free.emplace(piece->second.bytes, piece->first);
  }
  void unlist(Pieces::iterator piece) {
    piece->second.owner->free.erase({piece->second.bytes, piece->first});
  }

  // Lists a piece as free, merged with free neighbours of the same block and owner.
  void put_back(Pieces::iterator piece) {
    const auto mergeable = [&](Pieces::iterator other) {
      return other->second.free && other->second.block == piece->second.block &&
             other->second.owner == piece->second.owner;
    };
    if (const auto next = std::next(piece); next != pieces_.end() && mergeable(next)) {
      unlist(next);
      absorb(piece, next);
    }
    if (piece != pieces_.begin() && mergeable(std::prev(piece))) {
      const auto previous = std::prev(piece);
      unlist(previous);
      absorb(previous, piece);
      piece = previous;
    }
    list(piece);
  }
  void absorb(Pieces::iterator piece, Pieces::iterator next) {
    piece->second.bytes += next->second.bytes;
    piece->second.freed_as = std::max(piece->second.freed_as, next->second.freed_as);
    pieces_.erase(next);
  }

  // Gives to everyone what its stream has got past.
  void collect(bool wait) {
    for (const auto& [stream, owner] : owners_) {
      if (!owner->free.empty()) collect_from(*owner, wait);
    }
    std::erase_if(gone_, [&](const std::shared_ptr<Owner>& owner) {
      collect_from(*owner, wait);
      // Pieces still in use hold the owner; it comes back here when they are wanted.
      return owner->free.empty() && owner.use_count() == 1;
    });
  }

  void collect_from(Owner& owner, bool wait) {
    if (!owner.recorded) {
      if (owner.foreign) return;
      if (is_capturing(owner.stream)) return;  // its work is not under way, and may come again
      record(owner);
    }
    if (!passed(*owner.event, wait ? kLongestWait : std::chrono::milliseconds(0))) return;
    owner.recorded = owner.stream_gone;
    const std::set<std::pair<size_t, uintptr_t>> candidates = owner.free;
    for (const auto& [bytes, address] : candidates) {
      const auto piece = pieces_.find(address);
      if (piece == pieces_.end() || !piece->second.free || piece->second.owner.get() != &owner ||
          piece->second.freed_as > owner.covers) {
        continue;
      }
      unlist(piece);
      piece->second.owner = everyone_;
      put_back(piece);
    }
  }

  static bool passed(Event& event, std::chrono::milliseconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!event.done()) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }

  void record(Owner& owner) {
    if (owner.event == nullptr) owner.event = std::make_unique<Event>(device_);
    Stream(device_, owner.stream).record(*owner.event);
    owner.recorded = true;
    owner.covers = std::max(owner.covers, frees_);
  }

  bool is_capturing(StreamHandle stream) { return Stream(device_, stream).capturing(); }

  Pieces::iterator grow(size_t wanted, const Owner& owner) {
    const size_t least = round_up(wanted, kBlockStep);
    const size_t reserved = static_cast<size_t>(stats_.reserved);
    const size_t spare = std::min(round_up(reserved / 4, kBlockStep), kLargestSpare);
    for (const size_t bytes : {std::max(least, spare), least}) {
      if (fits(bytes)) {
        if (const auto block = new_block(bytes); block != pieces_.end()) return block;
      }
    }
    // Memory is short: wait for what is being freed, and hand whole blocks back to the driver.
    collect(/*wait=*/true);
    if (const auto piece = find(wanted, owner); piece != pieces_.end()) return piece;
    release_free_blocks();
    if (!fits(least)) throw_over_limit(wanted);
    return block_or_throw(least);
  }

  bool fits(size_t bytes) const {
    return limit_ == 0 || static_cast<size_t>(stats_.reserved) + bytes <= limit_;
  }

  Pieces::iterator new_block(size_t bytes) {
    try {
      return block_or_throw(bytes);
    } catch (const OutOfMemory&) {
      return pieces_.end();
    }
  }

  Pieces::iterator block_or_throw(size_t bytes) {
    const std::string purpose = fmt::format("intermediate results, which hold {} already",
                                            bytes_text(static_cast<size_t>(stats_.reserved)));
    const uintptr_t base =
        kind_ == MemoryKind::kDevice
            ? static_cast<uintptr_t>(device_->allocate(bytes, purpose))
            : reinterpret_cast<uintptr_t>(device_->allocate_pinned(bytes, purpose));
    blocks_.emplace(base, bytes);
    stats_.reserved += static_cast<int64_t>(bytes);
    stats_.blocks = static_cast<int64_t>(blocks_.size());
    ++stats_.block_allocations;
    Piece piece;
    piece.bytes = bytes;
    piece.block = base;
    piece.owner = everyone_;
    const auto entry = pieces_.emplace(base, std::move(piece)).first;
    list(entry);
    return entry;
  }

  void release_free_blocks() {
    std::erase_if(blocks_, [&](const auto& block) {
      const auto piece = pieces_.find(block.first);
      if (!piece->second.free || !piece->second.owner->everyone ||
          piece->second.bytes != block.second) {
        return false;
      }
      unlist(piece);
      pieces_.erase(piece);
      release_block(block.first);
      stats_.reserved -= static_cast<int64_t>(block.second);
      return true;
    });
    stats_.blocks = static_cast<int64_t>(blocks_.size());
  }

  void release_block(uintptr_t base) noexcept {
    if (kind_ == MemoryKind::kDevice) {
      device_->release(base);
    } else {
      device_->release_pinned(reinterpret_cast<void*>(base));
    }
  }

  [[noreturn]] void throw_over_limit(size_t wanted) const {
    throw OutOfMemory(fmt::format(
        "{} wanted, and memory_limit is {}, of which {} are in use in blocks of {}: raise "
        "memory_limit, or use smaller shapes or batches",
        bytes_text(wanted), bytes_text(limit_), bytes_text(static_cast<size_t>(stats_.in_use)),
        bytes_text(static_cast<size_t>(stats_.reserved))));
  }

  std::shared_ptr<Device> device_;
  const MemoryKind kind_;
  const size_t limit_;

  mutable std::mutex mutex_;
  std::shared_ptr<Owner> everyone_ = std::make_shared<Owner>();
  std::map<StreamHandle, std::shared_ptr<Owner>> owners_;
  std::vector<std::shared_ptr<Owner>> gone_;  // of streams that were destroyed
  std::map<uintptr_t, size_t> blocks_;
  Pieces pieces_;
  int64_t frees_ = 0;
  ArenaStats stats_;
};

}  // namespace

std::unique_ptr<Arena> Arena::make(std::shared_ptr<Device> device, MemoryKind kind, size_t limit) {
  return std::make_unique<BestFitArena>(std::move(device), kind, limit);
}

}  // namespace tenon::device
