#include "base/context_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/error.h"

namespace tenon {
namespace {

constexpr uint64_t kLong = kContextChunkBytes + 12345;

void fill_pattern(int64_t first, std::span<std::byte> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto at = static_cast<uint64_t>(first) + i;
    out[i] = static_cast<std::byte>(at * 31 + at / 251);
  }
}

void write_sections(ContextWriter& writer, uint64_t data_bytes) {
  writer.add("program", "launches and slots");
  writer.add("empty", "");
  writer.add_data("weights/a", data_bytes, fill_pattern);
  writer.add_data("weights/b", 100, [](int64_t, std::span<std::byte> out) {
    std::memset(out.data(), 7, out.size());
  });
  writer.add_data("weights/same", data_bytes, fill_pattern, 7);  // units that end inside a chunk
  writer.add("graph", "graph main {}");
  writer.finish();
}

std::string small_file() {
  const auto writer = ContextWriter::to_memory();
  write_sections(*writer, 5000);
  return writer->take();
}

// Everything that a session reads of it.
void read_all(std::string_view bytes) {
  const auto file = ContextFile::from_bytes(bytes);
  for (const std::string_view name : file->names()) {
    if (!file->has_data(name)) {
      (void)file->section(name);
      continue;
    }
    const DataSection data = file->data(name);
    for (size_t chunk = 0; chunk < data.digests.size(); ++chunk) {
      file->verify(data, chunk);
      CheckedData::verify_pair({*file, data, chunk}, {*file, data, 0});
    }
  }
}

// Whichever of the two was changed.
TEST(ContextPairs, FailWhereEitherWasChanged) {
  const auto writer = ContextWriter::to_memory();
  write_sections(*writer, 5000);
  std::string bytes = writer->take();
  const auto sound = ContextFile::from_bytes(bytes);
  const DataSection large = sound->data("weights/a"), small = sound->data("weights/b");
  EXPECT_NO_THROW(CheckedData::verify_pair({*sound, large, 0}, {*sound, small, 0}));
  EXPECT_NO_THROW(CheckedData::verify_pair({*sound, large, 0}, {*sound, large, 0}));
  EXPECT_THROW(CheckedData::verify_pair({*sound, large, 0}, {*sound, small, 1}), UserError);
  const size_t at = bytes.find(std::string(100, '\7'));
  ASSERT_NE(at, bytes.npos);
  bytes[at + 50] ^= 1;
  const auto changed = ContextFile::from_bytes(bytes);
  const DataSection same = changed->data("weights/a"), other = changed->data("weights/b");
  EXPECT_THROW(CheckedData::verify_pair({*changed, same, 0}, {*changed, other, 0}), UserError);
  EXPECT_THROW(CheckedData::verify_pair({*changed, other, 0}, {*changed, same, 0}), UserError);
  EXPECT_THROW(CheckedData::verify_pair({*changed, other, 0}, {*changed, other, 0}), UserError);
}

class ContextFileTest : public testing::Test {
 protected:
  ContextFileTest() {
    char name[] = "/tmp/tenon_context_XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~ContextFileTest() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::unique_ptr<ContextWriter> to_file(const std::string& name) const {
    return ContextWriter::to_file(folder_, [name](const Digest&) { return name; });
  }

  std::filesystem::path folder_;
};

TEST_F(ContextFileTest, GivesBackWhatWasWritten) {
  {
    const auto writer = to_file("a.bin");
    write_sections(*writer, kLong);
  }
  const auto file = ContextFile::open(path("a.bin"));
  EXPECT_TRUE(file->is_mapped());
  EXPECT_EQ(file->bytes(), std::filesystem::file_size(path("a.bin")));
  EXPECT_EQ(file->section("program"), "launches and slots");
  EXPECT_EQ(file->section("empty"), "");
  EXPECT_EQ(file->section("graph"), "graph main {}");
  EXPECT_FALSE(file->has("weights"));
  const DataSection data = file->data("weights/a");
  ASSERT_EQ(data.bytes.size(), kLong);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data.bytes.data()) % kContextAlignment, 0);
  ASSERT_EQ(data.digests.size(), 2);
  std::vector<std::byte> expected(kLong);
  fill_pattern(0, expected);
  EXPECT_EQ(std::memcmp(expected.data(), data.bytes.data(), kLong), 0);
  file->verify(data, 0);
  file->verify(data, 1);
  EXPECT_THROW(file->verify(data, 2), UserError);
  for (const std::vector<Digest>& made :
       {digests_of(data.bytes), digests_of(kLong, fill_pattern, 48)}) {
    EXPECT_TRUE(std::ranges::equal(made, data.digests));
  }
}

TEST_F(ContextFileTest, ACopyStaysWhatTheFileWas) {
  write_sections(*to_file("a.bin"), kLong);
  const auto copy = ContextFile::read(path("a.bin"));
  EXPECT_FALSE(copy->is_mapped());
  EXPECT_NE(copy->origin().find("a.bin'"), std::string::npos) << copy->origin();
  EXPECT_EQ(copy->digest(), ContextFile::open(path("a.bin"))->digest());
  std::filesystem::resize_file(path("a.bin"), 100);
  EXPECT_EQ(copy->section("program"), "launches and slots");
  const DataSection data = copy->data("weights/a");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data.bytes.data()) % kContextAlignment, 0);
  for (size_t chunk = 0; chunk < data.digests.size(); ++chunk) copy->verify(data, chunk);
  EXPECT_THROW(ContextFile::read(path("a.bin")), UserError);
  EXPECT_THROW(ContextFile::read(folder_.string()), UserError);
}

TEST_F(ContextFileTest, EqualDataIsStoredOnce) {
  const std::string bytes = small_file();
  const auto file = ContextFile::from_bytes(bytes);
  EXPECT_EQ(file->data("weights/a").bytes.data(), file->data("weights/same").bytes.data());
  EXPECT_LT(bytes.size(), 4 * kContextAlignment + 1000);
}

TEST_F(ContextFileTest, MemoryAndFileHaveTheSameBytes) {
  write_sections(*to_file("a.bin"), 5000);
  std::ifstream file(path("a.bin"), std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), small_file());
}

TEST_F(ContextFileTest, IsKnownByItsDigest) {
  std::string named;
  const auto writer = ContextWriter::to_file(
      folder_, [&](const Digest& digest) { return named = hex(digest).substr(0, 16) + ".bin"; });
  write_sections(*writer, 5000);
  EXPECT_EQ(named, hex(writer->digest()).substr(0, 16) + ".bin");
  EXPECT_EQ(ContextFile::open(path(named))->digest(), writer->digest());
  EXPECT_EQ(ContextFile::from_bytes(small_file())->digest(), writer->digest());
  const auto other = ContextWriter::to_memory();
  write_sections(*other, 5001);
  EXPECT_NE(other->digest(), writer->digest());
}

TEST_F(ContextFileTest, EveryCutIsAnError) {
  const std::string whole = small_file();
  EXPECT_NO_THROW(read_all(whole));
  std::mt19937 random(1);
  for (int i = 0; i < 512; ++i) {
    const size_t length = i < 128 ? i : random() % whole.size();
    EXPECT_THROW(read_all(std::string_view(whole).substr(0, length)), UserError) << length;
  }
  EXPECT_THROW(read_all(whole + '\0'), UserError);
}

// Padding included.
TEST_F(ContextFileTest, EveryChangedBitIsAnError) {
  const std::string whole = small_file();
  std::mt19937 random(2);
  for (size_t i = 0; i < 1024; ++i) {
    std::string changed = whole;
    const size_t at = i < 512 ? i * whole.size() / 512 : random() % whole.size();
    changed[at] = static_cast<char>(changed[at] ^ (1 << (random() % 8)));
    EXPECT_THROW(read_all(changed), UserError) << at;
  }
}

TEST_F(ContextFileTest, MessagesNameTheSection) {
  std::string bytes = small_file();
  bytes[bytes.find("launches and slots")] ^= 1;
  const auto file = ContextFile::from_bytes(bytes);
  try {
    (void)file->section("program");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("'program'"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW((void)file->section("graph"));
  EXPECT_THROW((void)file->section("weights/a"), UserError);
  EXPECT_THROW((void)file->data("graph"), UserError);
}

TEST_F(ContextFileTest, RefusesWhatIsNoRegularFile) {
  write_sections(*to_file("a.bin"), 5000);
  std::filesystem::create_symlink(path("a.bin"), path("link"));
  EXPECT_THROW(ContextFile::open(path("link")), UserError);
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_THROW(ContextFile::open(path("fifo")), UserError);  // and does not wait for a writer
  EXPECT_THROW(ContextFile::open(folder_.string()), UserError);
  EXPECT_THROW(ContextFile::open(path("absent")), UserError);
  std::ofstream(path("empty")).close();
  EXPECT_THROW(ContextFile::open(path("empty")), UserError);
}

TEST_F(ContextFileTest, WhatIsNotFinishedLeavesNothingBehind) {
  {
    const auto writer = to_file("a.bin");
    writer->add("program", "x");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_THROW(ContextWriter::to_file(path("no/such/folder"), {}), UserError);
}

TEST_F(ContextFileTest, ConcurrentReadersSeeTheSame) {
  write_sections(*to_file("a.bin"), 5000);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto file = ContextFile::open(path("a.bin"));
      EXPECT_EQ(file->section("program"), "launches and slots");
      file->verify(file->data("weights/a"), 0);
    });
  }
}

}  // namespace
}  // namespace tenon
