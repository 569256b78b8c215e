#include "distributed/bounded_call.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <thread>

#include "left_behind.h"

namespace {

using namespace std::chrono_literals;

class Library {
 public:
  Library() : handle_(::dlopen(TENON_LEFT_BEHIND, RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(handle_, nullptr) << ::dlerror();
  }
  CallWithin* call() const {
    return reinterpret_cast<CallWithin*>(::dlsym(handle_, "tenon_call_within"));
  }
  void unload() { EXPECT_EQ(::dlclose(handle_), 0); }
  static bool is_in_memory() {
    void* const found = ::dlopen(TENON_LEFT_BEHIND, RTLD_NOW | RTLD_NOLOAD);
    if (found != nullptr) ::dlclose(found);
    return found != nullptr;
  }

 private:
  void* handle_;
};

// Static: what is left behind uses it for as long as it lives.
std::atomic<Call> state;

// In this order: what stays in memory does so for good.
TEST(BoundedCall, ALibraryWhoseCallsEndedIsUnloaded) {
  Library library;
  state = Call::kMayEnd;
  EXPECT_TRUE(library.call()(&state, 20'000));
  EXPECT_EQ(state, Call::kEnded);
  library.unload();
  EXPECT_FALSE(Library::is_in_memory());
}

TEST(BoundedCall, ALibraryWhoseCallGoesOnStaysInMemory) {
  Library library;
  state = Call{};
  EXPECT_FALSE(library.call()(&state, 20));
  library.unload();
  EXPECT_TRUE(Library::is_in_memory());
  while (state != Call::kBegun) std::this_thread::sleep_for(1ms);
  state = Call::kMayEnd;
  while (state != Call::kEnded) std::this_thread::sleep_for(1ms);  // code of the library
}

}  // namespace
