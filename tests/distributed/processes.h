// Ranks as processes of their own, each with the same body, and a store of files between them.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "distributed/key_values.h"

namespace tenon::distributed {

// A folder that is removed in the end, by the process that made it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

KeyValues file_store(const std::filesystem::path& folder, int rank);

// How the process of a rank ended.
struct Ended {
  std::string thrown;   // CollectiveErrors as they are, others begin with "not collective: "
  bool failed = false;  // an expectation of it, or it ended with an error
  int signal = 0;       // that ended it
  std::chrono::milliseconds after{0};  // its body began
};

// Runs `body` in `size` processes. `meanwhile` runs in this one, with their ids. Who is stopped is
// killed when the others have ended, and who still lives after `limit`.
std::vector<Ended> run_processes(int size, const std::function<void(int rank)>& body,
                                 const std::function<void(const std::vector<int>&)>& meanwhile = {},
                                 std::chrono::milliseconds limit = std::chrono::minutes(1));

}  // namespace tenon::distributed
