#include "base/content_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/thread_pool.h"

namespace tenon {
namespace {

using Cache = ContentCache<std::string>;

// Makes `text`, counting in `made`.
auto maker(std::string text, std::atomic<int>& made, size_t bytes = 1) {
  return [text = std::move(text), &made, bytes] {
    ++made;
    return std::pair{std::make_shared<const std::string>(text), bytes};
  };
}

TEST(ContentCache, TheLeastRecentlyUsedGoesFirst) {
  Cache cache(2, 100);
  std::atomic<int> made = 0;
  const auto get = [&](const char* key) { return *cache.get(sha256(key), maker(key, made)); };
  get("a");
  get("b");
  EXPECT_EQ(get("a"), "a");
  EXPECT_EQ(made, 2);
  get("c");  // b goes
  EXPECT_EQ(get("a"), "a");
  EXPECT_EQ(made, 3);
  EXPECT_EQ(get("b"), "b");
  EXPECT_EQ(made, 4);
  EXPECT_EQ(cache.size(), 2u);
}

TEST(ContentCache, BytesAreBoundedAndOneThatIsTooLargeIsAlone) {
  Cache cache(10, 100);
  std::atomic<int> made = 0;
  for (const char* key : {"a", "b", "c"}) cache.get(sha256(key), maker(key, made, 40));
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.bytes(), 80u);
  const auto held = cache.get(sha256("large"), maker("large", made, 500));
  EXPECT_EQ(cache.size(), 1u);
  cache.clear();
  EXPECT_EQ(cache.bytes(), 0u);
  EXPECT_EQ(*held, "large");
}

TEST(ContentCacheConcurrent, ManyThreadsMakeAValueOnce) {
  Cache cache(10, 100);
  std::atomic<int> made = 0;
  parallel_for_each(
      64,
      [&](int64_t i) {
        const auto slow = [&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return maker("v", made)();
        };
        EXPECT_EQ(*cache.get(sha256(i % 2 == 0 ? "even" : "odd"), slow), "v");
      },
      8);
  EXPECT_EQ(made, 2);
}

TEST(ContentCache, SeveralAreMadeInOneGoUnlessTheyAreThere) {
  Cache cache(10, 100);
  std::atomic<int> made = 0;
  cache.get(sha256("b"), maker("b", made));
  const std::vector<Digest> keys{sha256("a"), sha256("b"), sha256("c"), sha256("a")};
  std::vector<std::vector<size_t>> asked;
  const auto make = [&](const std::vector<size_t>& missing) {
    std::ranges::sort(asked.emplace_back(missing));
    std::vector<std::pair<Cache::Pointer, size_t>> values;
    for (const size_t i : missing) values.push_back(maker(i == 2 ? "c" : "a", made)());
    return values;
  };
  for (int times = 0; times < 2; ++times) {
    const std::vector<Cache::Pointer> values = cache.get_all(keys, make);
    ASSERT_EQ(values.size(), 4u);
    EXPECT_EQ(*values[0] + *values[1] + *values[2] + *values[3], "abca");
  }
  EXPECT_EQ(asked, (std::vector<std::vector<size_t>>{{0, 2}}));
  EXPECT_EQ(made, 3);
}

// Sets that overlap, in other orders: who wants several holds some while it waits for others.
TEST(ContentCacheConcurrent, OverlappingSetsAreMadeOnce) {
  Cache cache(100, 100);
  std::atomic<int> made = 0;
  parallel_for_each(
      64,
      [&](int64_t i) {
        std::vector<std::string> texts{"a", "b", "c", "d", "e"};
        std::ranges::rotate(texts, texts.begin() + i % 5);
        std::vector<Digest> keys;
        for (const std::string& text : texts) keys.push_back(sha256(text));
        const auto values = cache.get_all(keys, [&](const std::vector<size_t>& missing) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          std::vector<std::pair<Cache::Pointer, size_t>> out;
          for (const size_t place : missing) out.push_back(maker(texts[place], made)());
          return out;
        });
        for (size_t place = 0; place < texts.size(); ++place) {
          EXPECT_EQ(*values[place], texts[place]);
        }
      },
      8);
  EXPECT_EQ(made, 5);
}

TEST(ContentCache, AFailureIsNotKept) {
  Cache cache(10, 100);
  std::atomic<int> made = 0;
  const auto fail = []() -> std::pair<Cache::Pointer, size_t> { throw std::runtime_error("no"); };
  EXPECT_THROW(cache.get(sha256("a"), fail), std::runtime_error);
  EXPECT_EQ(*cache.get(sha256("a"), maker("a", made)), "a");
  EXPECT_EQ(cache.bytes(), 1u);
}

TEST(ContentCache, WhatIsClearedWhileItIsMadeLeavesNoBytes) {
  Cache cache(10, 100);
  std::atomic<int> made = 0;
  const auto value = cache.get(sha256("a"), [&] {
    cache.clear();
    return maker("a", made, 7)();
  });
  EXPECT_EQ(*value, "a");
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(cache.bytes(), 0u);
}

}  // namespace
}  // namespace tenon
