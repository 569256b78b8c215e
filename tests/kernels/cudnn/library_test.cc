#include "kernels/cudnn/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "kernels/cudnn/versions.h"
#include "tests/kernels/cudnn/stub_library.h"

namespace tenon::cudnn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string why_not(const std::string& path) {
  return load_library(std::vector<std::string>{path}).support.reason;
}

TEST(CudnnLibraryTest, LoadsFromTheOldestVersionOn) {
  for (const int version : {90800, 91002, 91900, 92700}) {
    const StubLibrary stub = stub_library(version);
    EXPECT_EQ(stub.functions.version, version);
    EXPECT_EQ(stub.functions.path, stub_path());
    EXPECT_NE(stub.functions.execute, nullptr);
  }
}

TEST(CudnnLibraryTest, WhatIsOfAnotherVersionOrNoCudnnIsAReason) {
  const StubLibrary stub = stub_library();
  for (const int version : {8907, 90701, 100000}) {
    stub.set_version(version);
    EXPECT_THAT(why_not(stub_path()),
                AllOf(HasSubstr("is cuDNN " + version_text(version)), HasSubstr("9.8 or a newer 9"),
                      HasSubstr("pip install nvidia-cudnn-cu13")));
  }
  stub.set_version(91900);
  EXPECT_THAT(why_not("libtenon_no_cudnn.so.9"), HasSubstr("libtenon_no_cudnn.so.9"));
  // Some library that is here on every machine.
  EXPECT_THAT(why_not("libc.so.6"), HasSubstr("has no function cudnnGetVersion"));
}

TEST(CudnnLibraryTest, APartThatIsMissingIsAReasonAndNotTheEndOfTheProcess) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "half_a_cudnn";
  std::filesystem::create_directories(folder);
  const auto copy = folder / "libcudnn.so.9";
  std::filesystem::copy_file(stub_path(), copy, std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(why_not(copy), HasSubstr("is half installed: libcudnn_graph.so.9 is not beside it"));
  std::filesystem::remove_all(folder);
}

TEST(CudnnLibraryTest, ErrorsAreInItsOwnWords) {
  const StubLibrary stub = stub_library();
  stub.fail("cudnnBackendCreateDescriptor");
  RawDescriptor made = nullptr;
  const Status status = stub.functions.create(17, &made);
  EXPECT_EQ(stub.functions.words(status),
            "CUDNN_STATUS_NOT_SUPPORTED: the stub's cudnnBackendCreateDescriptor was told to fail");
}

}  // namespace
}  // namespace tenon::cudnn
