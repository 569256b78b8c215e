#include "tests/distributed/processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <thread>

namespace tenon::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Others see all of it or nothing.
void publish(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::path part = path;
  part += ".part" + std::to_string(getpid());
  std::ofstream(part, std::ios::binary) << text;
  std::filesystem::rename(part, path);
}

std::filesystem::path file_of(const std::filesystem::path& folder, int rank, std::string key) {
  for (char& letter : key) letter = letter == '/' ? '.' : letter;
  return folder / (key + " of " + std::to_string(rank));
}

// The body of one process; it does not come back.
[[noreturn]] void live(int rank, const std::filesystem::path& folder,
                       const std::function<void(int)>& body) {
  const auto begin = Clock::now();
  const auto failures = [] {
    return ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
  };
  const int failures_before = failures();  // of the process that this one was forked from
  std::string thrown;
  try {
    body(rank);
  } catch (const CollectiveError& error) {
    thrown = error.what();
  } catch (const std::exception& error) {
    thrown = std::string("not collective: ") + error.what();
  }
  const auto after = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
  publish(folder / ("thrown by " + std::to_string(rank)), thrown);
  publish(folder / ("time of " + std::to_string(rank)), std::to_string(after.count()));
  std::fflush(nullptr);
  _exit(failures() > failures_before ? 1 : 0);
}

// Waits until all have ended, at most this long. Who is stopped is ended when all others have.
std::vector<Ended> wait_for(const std::vector<int>& processes, milliseconds limit) {
  std::vector<Ended> ended(processes.size());
  std::set<size_t> living, stopped;
  for (size_t rank = 0; rank < processes.size(); ++rank) living.insert(rank);
  const auto end = Clock::now() + limit;
  while (!living.empty()) {
    if (living == stopped || Clock::now() > end) {
      for (const size_t rank : living) kill(processes[rank], SIGKILL);
    }
    for (const size_t rank : std::set(living)) {
      int status = 0;
      if (waitpid(processes[rank], &status, WNOHANG | WUNTRACED) == 0) continue;
      if (WIFSTOPPED(status)) {
        stopped.insert(rank);
        continue;
      }
      living.erase(rank);
      ended[rank].failed = WIFEXITED(status) && WEXITSTATUS(status) != 0;
      ended[rank].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return ended;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "tenon-ranks-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

KeyValues file_store(const std::filesystem::path& folder, int rank) {
  KeyValues store;
  store.set = [=](const std::string& key, const std::string& value) {
    publish(file_of(folder, rank, key), value);
  };
  store.get = [=](int of, const std::string& key, milliseconds deadline) {
    const std::filesystem::path path = file_of(folder, of, key);
    const auto end = Clock::now() + deadline;
    while (!std::filesystem::exists(path)) {
      if (Clock::now() >= end) throw std::runtime_error("nothing is stored");
      std::this_thread::sleep_for(milliseconds(1));
    }
    return content(path);
  };
  return store;
}

std::vector<Ended> run_processes(int size, const std::function<void(int rank)>& body,
                                 const std::function<void(const std::vector<int>&)>& meanwhile,
                                 milliseconds limit) {
  const TemporaryFolder folder;
  std::fflush(nullptr);
  std::vector<int> processes;
  for (int rank = 0; rank < size; ++rank) {
    const int process = fork();
    if (process < 0) throw std::runtime_error("no process could be made");
    if (process == 0) live(rank, folder.path(), body);
    processes.push_back(process);
  }
  if (meanwhile) meanwhile(processes);
  std::vector<Ended> ended = wait_for(processes, limit);
  for (int rank = 0; rank < size; ++rank) {
    ended[rank].thrown = content(folder.path() / ("thrown by " + std::to_string(rank)));
    const std::string time = content(folder.path() / ("time of " + std::to_string(rank)));
    if (!time.empty()) ended[rank].after = milliseconds(std::stoll(time));
  }
  return ended;
}

}  // namespace tenon::distributed
