#include "processes.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "distributed/rendezvous/socket.h"

namespace tenon::distributed {

Processes::~Processes() {
  for (const Child& child : children_) {
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
    ::close(child.pipe);
  }
}

void Processes::start(const std::function<void(const Say&)>& work) {
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  (void)std::fflush(nullptr);  // or the child prints what is buffered here
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ::close(pipes[0]);
    const auto say = [&](const std::string& text) {
      const std::string line = text + "\n";
      (void)!::write(pipes[1], line.data(), line.size());
    };
    try {
      work(say);
    } catch (const std::exception& error) {
      say(std::string("threw ") + error.what());
    }
    ::_exit(0);
  }
  ::close(pipes[1]);
  children_.push_back({.pid = pid, .pipe = pipes[0], .read = {}});
}

std::string Processes::line(size_t process, std::chrono::milliseconds limit) {
  Child& child = children_.at(process);
  const auto end = Clock::now() + limit;
  while (child.read.find('\n') == std::string::npos) {
    pollfd ready{.fd = child.pipe, .events = POLLIN, .revents = 0};
    char bytes[4096];
    const bool came = ::poll(&ready, 1, poll_milliseconds(end)) > 0;
    const ssize_t count = came ? ::read(child.pipe, bytes, sizeof(bytes)) : 0;
    if (count <= 0) {
      ADD_FAILURE() << "process " << process << (came ? " ended" : " says nothing");
      return "";
    }
    child.read.append(bytes, static_cast<size_t>(count));
  }
  const size_t length = child.read.find('\n');
  const std::string line = child.read.substr(0, length);
  child.read.erase(0, length + 1);
  return line;
}

void Processes::signal(size_t process, int number) { ASSERT_EQ(::kill(pid(process), number), 0); }

}  // namespace tenon::distributed
