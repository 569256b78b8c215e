#include "kernels/autotune/tuning_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "base/error.h"
#include "tests/kernels/running/allocation_count.h"

namespace tenon::kernels {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFingerprint = "0123456789abcdef0123456789abcdef";

TuningRecord sample(int64_t first = 1, int64_t last = 8) {
  TuningRecord record;
  record.fusion = "tenon::ScaledDot(f32[*,64]) -> (f32[*,32])";
  record.fingerprint = kFingerprint;
  record.rows = {first, last};
  record.machine = {"sm_90a", 132, 1980, "NVIDIA H200", "0.1.0", "13000", ""};
  record.kernel = {"pipelined", {Skeleton::kSkinnyGemm, {{Knob::kTileM, 16}, {Knob::kSplitK, 2}}}};
  record.microseconds = 10.25;
  record.untuned = {"mma", {Skeleton::kMma, {{Knob::kTileM, 64}}}};
  record.untuned_microseconds = 12;
  record.date = "2026-11-18T12:00:00Z";
  return record;
}

TuningFile file_of(const std::vector<TuningRecord>& records) {
  TuningFile file;
  file.merge(records);
  return file;
}

class TuningFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "tuning-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& text) const {
    std::ofstream(path()) << text;
    return path();
  }
  std::string path() const { return folder_ / "tune.textproto"; }

  fs::path folder_;
};

TEST(TuningFile, PrintsWhatParsesBack) {
  const std::string text = file_of({sample(), sample(9, RowRange::kNoLimit)}).print();
  const TuningFile read = TuningFile::parse(text);
  EXPECT_TRUE(read.problems.empty());
  ASSERT_EQ(read.records.size(), 2u);
  EXPECT_EQ(read.print(), text);
  EXPECT_EQ(read.records[0].rows, (RowRange{1, 8}));
  EXPECT_EQ(read.records[1].rows, (RowRange{9}));
  EXPECT_EQ(read.records[0].machine, sample().machine);
  EXPECT_EQ(read.records[0].kernel, sample().kernel);
  EXPECT_EQ(read.records[0].untuned, sample().untuned);
  EXPECT_EQ(read.records[0].text(),
            "pipelined: tile 16, split-K 2; 10.2 us measured, untuned 12.0 us");
}

// Four times the records, four times the work.
TEST(TuningFile, IsReadAndWrittenInTimeThatGrowsWithItsSize) {
  const auto work_of = [](int records) {
    std::vector<TuningRecord> all;
    for (int i = 0; i < records; ++i) all.push_back(sample(8 * i + 1, 8 * i + 8));
    const std::string text = file_of(all).print();
    return test::count_allocations([&] {
      const TuningFile file = TuningFile::parse(text);
      EXPECT_EQ(file.records.size(), static_cast<size_t>(records));
      EXPECT_EQ(file.print(), text);
    });
  };
  EXPECT_LT(work_of(2000), 5 * work_of(500));
}

// tests/python/test_tuning_files.py gives the same file to the library of Protocol Buffers.
TEST(TuningFile, IsWhatTheLibraryReads) {
  std::ifstream file("tests/python/tuning_records.textproto");
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(file_of({sample(), sample(9, RowRange::kNoLimit)}).print(), golden);
}

TEST(TuningFile, KeepsFieldsThatItDoesNotKnow) {
  std::string text = file_of({sample()}).print();
  text.insert(text.rfind('}'), "  stall { cycles: 7 name: \"x\" }\n");
  const TuningFile read = TuningFile::parse("new_field: 3\n" + text);
  ASSERT_EQ(read.records.size(), 1u);
  EXPECT_TRUE(read.problems.empty());
  EXPECT_NE(read.print().find("stall { cycles: 7 name: \"x\" }"), std::string::npos);
}

TEST(TuningFile, DropsABadRecordAndReadsTheNext) {
  const std::string good = file_of({sample()}).print();
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string bad = file_of({sample(9, 16)}).print();
    bad.replace(bad.find(from), from.size(), to);
    return bad + good.substr(good.find("record {"));
  };
  const std::pair<std::string, std::string> cases[] = {
      {with("skinny_gemm", "fancy_gemm"), "no skeleton is called 'fancy_gemm'"},
      {with("tile_m", "tile_z"), "no knob is called 'tile_z'"},
      {with("split_k", "tile_m"), "knob 'tile_m' stands twice"},
      {with("first: 9", "first: 19"), "the range of rows is empty"},
      {with(kFingerprint, "01234"), "the fingerprint is not 32 hexadecimal digits"},
      {with("10.25", "inf"), "'microseconds' is not a number"},
      {with("10.25", "-1"), "'microseconds' is no time"},
      {with("candidate: \"pipelined\"", ""), "a kernel has no candidate"},
      {with("sm_count: 132", "sm_count: -1"), "'sm_count' is out of range"},
      {with("132", "\"many\""), "'sm_count' is not a whole number"},
      {with("fusion: \"", "fusion: "), "a field's name was expected"},
  };
  for (const auto& [text, why] : cases) {
    const TuningFile read = TuningFile::parse(text);
    ASSERT_EQ(read.problems.size(), 1u) << why;
    EXPECT_NE(read.problems[0].find(why), std::string::npos) << read.problems[0];
    ASSERT_EQ(read.records.size(), 1u) << why;
    EXPECT_EQ(read.records[0].rows, (RowRange{1, 8}));
  }
}

TEST(TuningFile, EveryCutOfAFileIsReadWithoutAWrongRecord) {
  const std::string text = file_of({sample(), sample(9, 16)}).print();
  const size_t second = text.rfind("record {");
  for (size_t length = 0; length < text.size(); ++length) {
    const TuningFile read = TuningFile::parse(text.substr(0, length));
    for (const TuningRecord& record : read.records) EXPECT_EQ(record.kernel, sample().kernel);
    if (length > second + 8 && length < text.size() - 2) {
      EXPECT_EQ(read.records.size(), 1u) << length;
      EXPECT_EQ(read.problems.size(), 1u) << length;
    }
  }
}

TEST(TuningFile, ReadsNothingOfAnotherForm) {
  std::string text = file_of({sample()}).print();
  text.replace(text.find("form: 1"), 7, "form: 9");
  const TuningFile read = TuningFile::parse(text);
  EXPECT_TRUE(read.records.empty());
  ASSERT_EQ(read.problems.size(), 1u);
  EXPECT_EQ(read.problems[0], "it has form 9, and this version of Tenon reads form 1");
}

TEST(TuningFile, MergeKeepsTheNewerOfOneKeyAndAllKeys) {
  TuningRecord newer = sample(), other_card = sample();
  newer.date = "2026-12-01T00:00:00Z";
  newer.microseconds = 9;
  other_card.machine.sm_count = 78;
  const TuningFile one = file_of({sample(), newer}), two = file_of({newer, sample()});
  EXPECT_EQ(one.print(), two.print());
  ASSERT_EQ(one.records.size(), 1u);
  EXPECT_EQ(one.records[0].microseconds, 9);
  TuningFile both = one;
  both.merge({other_card, sample(9, 16)});
  EXPECT_EQ(both.records.size(), 3u);
  TuningFile turned = file_of({sample(9, 16), other_card});
  turned.merge(one.records);
  EXPECT_EQ(turned.print(), both.print());
}

TEST_F(TuningFiles, SaysWhyAFileCannotBeRead) {
  EXPECT_THROW(TuningFile::read(path()), UserError);
  EXPECT_THROW(TuningFile::read(folder_), UserError);
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_THROW(TuningFile::read(path()), UserError);
}

TEST_F(TuningFiles, ProblemsNameTheFile) {
  const TuningFile read = TuningFile::read(write("record {\n"));
  ASSERT_EQ(read.problems.size(), 1u);
  EXPECT_EQ(read.problems[0],
            fmt::format("tuning file '{}': the record at line 1 was dropped: line "
                        "2: the text ends inside of a message",
                        path()));
}

TEST_F(TuningFiles, UpdateMakesTheFileAndMergesIntoIt) {
  update_tuning_file(path(), {sample()});
  const TuningFile after = update_tuning_file(path(), {sample(9, 16)});
  EXPECT_EQ(after.records.size(), 2u);
  EXPECT_EQ(TuningFile::read(path()).print(), after.print());
  EXPECT_THROW(update_tuning_file(folder_ / "absent" / "file", {sample()}), UserError);
}

TEST_F(TuningFiles, ProcessesThatUpdateAtOnceLoseNothing) {
  constexpr int kProcesses = 8, kRecords = 12;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int failed = 0;
      try {
        for (int i = 0; i < kRecords; ++i) {
          update_tuning_file(path(), {sample(process * kRecords + i + 1, 1000)});
        }
      } catch (...) {
        failed = 1;
      }
      ::_exit(failed);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const TuningFile file = TuningFile::read(path());
  EXPECT_TRUE(file.problems.empty());
  EXPECT_EQ(file.records.size(), static_cast<size_t>(kProcesses * kRecords));
}

// Whoever may read the file may keep its lock.
TEST_F(TuningFiles, ALockThatIsNeverGivenBackIsAnError) {
  update_tuning_file(path(), {sample()});
  const int held = ::open((path() + ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  try {
    update_tuning_file(path(), {sample(9, 16)}, std::chrono::milliseconds(20));
    ADD_FAILURE() << "it was written under another's lock";
  } catch (const UserError& error) {
    const std::string why = error.what();
    EXPECT_NE(why.find(path() + ".lock"), why.npos) << why;
    EXPECT_NE(why.find("another process has held it"), why.npos) << why;
  }
  ::close(held);
  EXPECT_EQ(update_tuning_file(path(), {sample(9, 16)}).records.size(), 2u);
}

}  // namespace
}  // namespace tenon::kernels
