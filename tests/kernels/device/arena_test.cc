#include "kernels/device/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "tests/kernels/device/stub_driver.h"

namespace tenon::device {
namespace {

using test::StubDriver;
using ::testing::HasSubstr;

constexpr size_t kMiB = 1 << 20;

class ArenaTest : public ::testing::Test {
 protected:
  StubDriver stub_;
  std::shared_ptr<Device> device_ = Device::open(0);
  Stream a_{device_}, b_{device_};
};

TEST_F(ArenaTest, TakesBlocksOfWholeStepsAndReusesThem) {
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  void* first = arena->allocate(1000);
  void* second = arena->allocate(1000);
  EXPECT_NE(first, second);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second) % 256, 0u);
  ArenaStats stats = arena->stats();
  EXPECT_EQ(stats.in_use, 2048);
  EXPECT_EQ(stats.reserved, static_cast<int64_t>(2 * kMiB));
  EXPECT_EQ(stats.blocks, 1);
  arena->release(first);
  EXPECT_EQ(arena->allocate(900), first);
  arena->release(first);
  arena->release(second);
  stats = arena->stats();
  EXPECT_EQ(stats.in_use, 0);
  EXPECT_EQ(stats.peak_in_use, 2048);
  EXPECT_EQ(stats.allocations, 3);
  EXPECT_EQ(arena->allocate(2 * kMiB), first) << "free neighbours become one piece";
  EXPECT_EQ(arena->stats().block_allocations, 1);
}

TEST_F(ArenaTest, NothingIsNull) {
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  EXPECT_EQ(arena->allocate(0), nullptr);
  arena->release(nullptr);
}

TEST_F(ArenaTest, TakesTheSmallestPieceThatFits) {
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  void* large = arena->allocate(64 << 10);
  void* kept = arena->allocate(256);
  void* small = arena->allocate(4 << 10);
  void* end = arena->allocate(256);
  arena->release(large);
  arena->release(small);
  EXPECT_EQ(arena->allocate(3 << 10), small);
  arena->release(kept);
  arena->release(end);
}

TEST_F(ArenaTest, AStreamGetsItsOwnPieceBackWithoutAskingTheDriver) {
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  void* piece = arena->allocate(2 * kMiB, a_.handle());
  arena->release(piece);
  const long calls = stub_.calls();
  EXPECT_EQ(arena->allocate(2 * kMiB, a_.handle()), piece);
  EXPECT_EQ(stub_.calls(), calls);
}

TEST_F(ArenaTest, AnotherStreamGetsAPieceOnceTheFirstHasGotPastIt) {
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  void* piece = arena->allocate(2 * kMiB, a_.handle());
  a_.fill(reinterpret_cast<Address>(piece), 1, 2 * kMiB);
  arena->release(piece);
  EXPECT_EQ(arena->allocate(2 * kMiB, b_.handle()), piece);
  EXPECT_EQ(stub_.calls("cuEventRecord"), 1);
  // The stub would report this write if the arena had not made sure that the first is done.
  b_.fill(reinterpret_cast<Address>(piece), 2, 2 * kMiB);
}

TEST_F(ArenaTest, PiecesChangeStreamsOnlyWhenTheirWorkIsDone) {
  stub_.script("lazy");
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  auto* result = static_cast<unsigned char*>(device_->allocate_pinned(1, "a result"));
  void* piece = arena->allocate(2 * kMiB, a_.handle());
  a_.fill(reinterpret_cast<Address>(piece), 1, 1);
  a_.copy(reinterpret_cast<Address>(result), reinterpret_cast<Address>(piece), 1);
  arena->release(piece);
  ASSERT_EQ(arena->allocate(2 * kMiB, b_.handle()), piece);
  b_.fill(reinterpret_cast<Address>(piece), 2, 1);
  b_.synchronize();
  a_.synchronize();
  EXPECT_EQ(*result, 1);
  device_->release_pinned(result);
}

TEST_F(ArenaTest, APieceOfABusyStreamIsNotGivenToOthers) {
  stub_.script("hang_stream 1");
  Stream busy(device_);
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  void* piece = arena->allocate(2 * kMiB, busy.handle());
  arena->release(piece);
  EXPECT_NE(arena->allocate(2 * kMiB, b_.handle()), piece);
  EXPECT_EQ(arena->allocate(2 * kMiB, busy.handle()), piece);
}

TEST_F(ArenaTest, AStreamThatIsCapturedIsNotDisturbed) {
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  void* piece = arena->allocate(2 * kMiB, a_.handle());
  arena->release(piece);
  a_.begin_capture();
  void* other = nullptr;
  // Memory is taken by a thread that does not capture.
  std::thread([&] { other = arena->allocate(2 * kMiB, b_.handle()); }).join();
  EXPECT_NE(other, piece);
  const Graph graph(device_, a_.end_capture());
}

TEST_F(ArenaTest, AForgottenStreamsPiecesGoToEveryone) {
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  void* freed = nullptr;
  void* in_use = nullptr;
  {
    Stream gone(device_);
    freed = arena->allocate(2 * kMiB, gone.handle());
    in_use = arena->allocate(2 * kMiB, gone.handle());
    arena->release(freed);
    arena->forget(gone.handle());
  }
  EXPECT_EQ(arena->allocate(2 * kMiB, b_.handle()), freed);
  arena->release(in_use);
  EXPECT_EQ(arena->allocate(2 * kMiB, b_.handle()), in_use);
}

// The CUDA provider's streams end with the thread that ran on them. A call on one that is gone,
// which the stub reports, is a crash in the driver.
TEST_F(ArenaTest, AForeignStreamThatIsGoneIsNotTouched) {
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  void* lost = nullptr;
  void* told = nullptr;
  {
    const Stream gone(device_), forgotten(device_);
    lost = arena->allocate(2 * kMiB, gone.handle(), StreamEnd::kForeign);
    told = arena->allocate(2 * kMiB, forgotten.handle(), StreamEnd::kForeign);
    arena->release(lost);
    arena->release(told);
    arena->forget(forgotten.handle());
  }
  EXPECT_EQ(arena->allocate(2 * kMiB, b_.handle()), told);
  EXPECT_NE(arena->allocate(2 * kMiB, b_.handle()), lost);
  arena->shrink();
}

TEST_F(ArenaTest, ShrinkGivesWholeBlocksBack) {
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  void* kept = arena->allocate(2 * kMiB, a_.handle());
  void* freed = arena->allocate(2 * kMiB, a_.handle());
  const size_t before = device_->memory().free;
  arena->release(freed);
  arena->shrink();
  EXPECT_EQ(device_->memory().free, before + 2 * kMiB);
  EXPECT_EQ(arena->stats().blocks, 1);
  arena->release(kept);
  arena->shrink();
  EXPECT_EQ(arena->stats().reserved, 0);
}

TEST_F(ArenaTest, TheLimitHoldsAndIsNamed) {
  const auto arena = Arena::make(device_, MemoryKind::kDevice, 4 * kMiB);
  EXPECT_EQ(arena->stats().limit, static_cast<int64_t>(4 * kMiB));
  void* piece = arena->allocate(3 * kMiB);
  try {
    arena->allocate(kMiB + 1);
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("memory_limit is 4.0 MiB"));
    EXPECT_THAT(error.what(), HasSubstr("3.0 MiB are in use"));
  }
  arena->release(piece);
  EXPECT_NO_THROW(arena->allocate(4 * kMiB)) << "the session stays usable";
}

TEST_F(ArenaTest, FreedBlocksOfTheWrongSizeMakeRoom) {
  stub_.script("free_memory 8388608");
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  void* first = arena->allocate(4 * kMiB, a_.handle());
  void* second = arena->allocate(4 * kMiB, a_.handle());
  arena->release(first);
  arena->release(second);
  EXPECT_NE(arena->allocate(8 * kMiB, b_.handle()), nullptr);
  try {
    arena->allocate(kMiB);
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("2.0 MiB wanted for intermediate results"));
    EXPECT_THAT(error.what(), HasSubstr("hold 8.0 MiB already"));
  }
}

TEST_F(ArenaTest, PinnedMemoryIsTheHosts) {
  const auto arena = Arena::make(device_, MemoryKind::kPinned);
  void* piece = arena->allocate(1000);
  std::memset(piece, 7, 1000);
  arena->release(piece);
  arena->shrink();
  EXPECT_EQ(stub_.calls("cuMemHostAlloc"), 1);
  EXPECT_EQ(stub_.calls("cuMemFreeHost"), 1);
}

TEST_F(ArenaTest, RandomUseKeepsPiecesApart) {
  const auto arena = Arena::make(device_, MemoryKind::kPinned);
  std::mt19937 random(7);
  struct Held {
    unsigned char* memory;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Held> held;
  for (int step = 0; step < 4000; ++step) {
    if (held.size() < 40 && random() % 2 == 0) {
      const size_t bytes = 1 + random() % (random() % 10 == 0 ? 300000 : 3000);
      StreamHandle streams[] = {nullptr, a_.handle(), b_.handle()};
      auto* memory = static_cast<unsigned char*>(arena->allocate(bytes, streams[random() % 3]));
      const auto mark = static_cast<unsigned char>(random());
      std::memset(memory, mark, bytes);
      held.push_back({memory, bytes, mark});
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const Held piece = held.back();
      held.pop_back();
      for (size_t i = 0; i < piece.bytes; ++i) ASSERT_EQ(piece.memory[i], piece.mark);
      arena->release(piece.memory);
    }
  }
  for (const Held& piece : held) arena->release(piece.memory);
  EXPECT_EQ(arena->stats().in_use, 0);
  arena->shrink();
  EXPECT_EQ(arena->stats().reserved, 0) << "all pieces found together again";
}

TEST_F(ArenaTest, ConcurrentUseFromManyThreads) {
  const auto arena = Arena::make(device_, MemoryKind::kDevice);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      Stream stream(device_);
      for (int i = 0; i < 100; ++i) {
        const size_t bytes = static_cast<size_t>(1 + (i * 37 + t) % 5) << 18;
        void* piece = arena->allocate(bytes, stream.handle());
        stream.fill(reinterpret_cast<Address>(piece), static_cast<unsigned char>(t), 64);
        arena->release(piece);
      }
      arena->forget(stream.handle());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->stats().in_use, 0);
  arena->shrink();
  EXPECT_EQ(arena->stats().reserved, 0);
}

}  // namespace
}  // namespace tenon::device
