#include "kernels/autotune/tuning_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"
#include "base/publish_file.h"
#include "base/replace_file.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kForm = 1;
constexpr int64_t kMostBytes = 256 << 20;
constexpr std::string_view kRecord = "record";

// A piece of the text that is read by itself.
struct Piece {
  std::string_view text;
  int line;
};

bool begins_record(std::string_view line) {
  if (!line.starts_with(kRecord)) return false;
  line.remove_prefix(kRecord.size());
  const size_t next = line.find_first_not_of(" \t:");
  return next != line.npos && line[next] == '{';
}

std::vector<Piece> cut(std::string_view text) {
  std::vector<Piece> pieces = {{text.substr(0, 0), 1}};
  size_t begin = 0;
  int line = 1;
  for (size_t at = 0; at < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    if (at > begin && begins_record(text.substr(at, end - at))) {
      pieces.back().text = text.substr(begin, at - begin);
      pieces.push_back({text.substr(0, 0), line});
      begin = at;
    }
    at = end;
  }
  pieces.back().text = text.substr(begin);
  return pieces;
}

void read_piece(const TextMessage& message, std::vector<TuningRecord>& records) {
  for (const TextField& field : message.fields) {
    if (field.name != kRecord) continue;
    if (field.kind != TextField::Kind::kMessage) throw UserError("a record is not a message");
    records.push_back(TuningRecord::from_message(field.message));
  }
}

std::string read_all(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat known {};
  if (!file.is_open() || ::fstat(file.number(), &known) != 0) {
    throw UserError(fmt::format("tuning file '{}': {}", path, because_of_errno()));
  }
  if (!S_ISREG(known.st_mode)) {
    throw UserError(fmt::format("tuning file '{}': it is not a regular file", path));
  }
  if (known.st_size > kMostBytes) {
    throw UserError(fmt::format("tuning file '{}': it is larger than {} bytes", path, kMostBytes));
  }
  std::string text(static_cast<size_t>(known.st_size), '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t count = ::read(file.number(), text.data() + got, text.size() - got);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    got += static_cast<size_t>(count);
  }
  text.resize(got);
  return text;
}

// Whoever may open the file may lock it, for ever: nobody is waited for longer than `patience`.
Descriptor lock(const std::string& path, std::chrono::milliseconds patience) {
  const std::string name = path + ".lock";
  const auto deadline = std::chrono::steady_clock::now() + patience;
  Descriptor file(::open(name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  while (file.is_open() && ::flock(file.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR && errno != EWOULDBLOCK) {
      throw UserError(fmt::format("lock '{}' of the tuning file: {}", name, because_of_errno()));
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw UserError(fmt::format(
          "lock '{}' of the tuning file: another process has held it for {} ms, and "
          "writing the file takes a moment: end that process, or give another tune_file",
          name, patience.count()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (!file.is_open()) {
    throw UserError(fmt::format("lock '{}' of the tuning file: {}", name, because_of_errno()));
  }
  return file;
}

}  // namespace

TuningFile TuningFile::parse(std::string_view text) {
  TuningFile file;
  std::vector<TuningRecord> records;
  for (const Piece& piece : cut(text)) {
    try {
      const TextMessage message = parse_text_message(piece.text, piece.line);
      if (const int64_t form = message.integer("form", kForm); form != kForm) {
        return {
            {},
            {fmt::format("it has form {}, and this version of Tenon reads form {}", form, kForm)}};
      }
      read_piece(message, records);
    } catch (const UserError& error) {
      file.problems.push_back(
          fmt::format("the record at line {} was dropped: {}", piece.line, error.what()));
    }
  }
  file.merge(records);
  return file;
}

TuningFile TuningFile::read(const std::string& path) {
  TuningFile file = parse(read_all(path));
  for (std::string& problem : file.problems) {
    problem = fmt::format("tuning file '{}': {}", path, problem);
  }
  return file;
}

void TuningFile::merge(const std::vector<TuningRecord>& others) {
  std::map<std::string, TuningRecord> by_key;
  for (TuningRecord& record : records) by_key.emplace(record.key(), std::move(record));
  for (const TuningRecord& record : others) {
    const auto [known, is_new] = by_key.try_emplace(record.key(), record);
    if (!is_new && record.date >= known->second.date) known->second = record;
  }
  records.clear();
  for (auto& [key, record] : by_key) records.push_back(std::move(record));
}

std::string TuningFile::print() const {
  std::string text = fmt::format(
      "# proto-file: proto/tuning.proto\n# proto-message: tenon.tuning.TuningFile\nform: {}\n",
      kForm);
  for (const TuningRecord& record : records) {
    text += fmt::format("{} {{\n{}}}\n", kRecord, record.to_message().print(2));
  }
  return text;
}

TuningFile update_tuning_file(const std::string& path, const std::vector<TuningRecord>& records,
                              std::chrono::milliseconds patience) {
  const Descriptor locked = lock(path, patience);
  TuningFile file;
  if (std::filesystem::exists(path)) file = TuningFile::read(path);
  file.merge(records);
  if (const Support written = publish_file(path, file.print()); !written) {
    throw UserError(fmt::format("tuning file '{}' cannot be written: {}", path, written.reason));
  }
  return file;
}

}  // namespace tenon::kernels
