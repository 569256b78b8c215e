#include "tests/kernels/device/stub_driver.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "codegen/tile/text.h"

namespace tenon::test {
namespace {

// Before anything asks for the driver; a case run alone may have been given another.
const bool chosen = setenv("TENON_DRIVER_LIBRARY", TENON_STUB_DRIVER_PATH, 0) == 0;

template <typename Function>
Function control(const char* name) {
  static void* const library = dlopen(TENON_STUB_DRIVER_PATH, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function>(dlsym(library, name));
}

bool exists(const std::string& test) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      if (test == std::string(suite.name()) + "." + suite.GetTestInfo(j)->name()) return true;
    }
  }
  return false;
}

codegen::GpuCode gpu_code(const std::string& program) {
  constexpr int kThreads = 64;
  return codegen::compile_gpu(codegen::parse(program), kThreads, codegen::GpuTarget());
}

}  // namespace

StubDriver::StubDriver(const std::string& commands) {
  control<void (*)()>("tenon_stub_reset")();
  if (!commands.empty()) script(commands);
}

StubDriver::~StubDriver() { EXPECT_EQ(reports(), ""); }

std::string StubDriver::problem(const std::string& commands) {
  const char* words = control<const char* (*)(const char*)>("tenon_stub_script")(commands.c_str());
  return words == nullptr ? "" : words;
}

void StubDriver::script(const std::string& commands) { ASSERT_EQ(problem(commands), ""); }

std::string StubDriver::reports() const {
  return control<const char* (*)()>("tenon_stub_reports")();
}

std::string StubDriver::take_reports() {
  std::string found = reports();
  control<void (*)()>("tenon_stub_reset")();
  return found;
}

std::string StubDriver::leaks() const { return control<const char* (*)()>("tenon_stub_leaks")(); }

long StubDriver::calls(const std::string& function) const {
  return control<long (*)(const char*)>("tenon_stub_calls")(function.c_str());
}

codegen::GpuCode add_one_code(const std::string& name) {
  return gpu_code("kernel @" + name + R"((%x: buffer<f32>, %y: buffer<f32>, %n: index) {
  %0 = task : index
  %1 = index.mul %0, 64 : index
  %2 = index.sub %n, %1 : index
  %3 = load %x[%1] strides(1) extents(%2) fill 0.0 : f32[64]
  %4 = constant 1.0 : f32[64]
  %5 = add %3, %4 : f32[64]
  store %y[%1], %5 strides(1) extents(%2) : f32[64]
})");
}

codegen::GpuCode double_in_place_code() {
  return gpu_code(R"(kernel @double_in_place(%x: buffer<f32>, %n: index) {
  %0 = task : index
  %1 = index.mul %0, 64 : index
  %2 = index.sub %n, %1 : index
  %3 = load %x[%1] strides(1) extents(%2) fill 0.0 : f32[64]
  %4 = add %3, %3 : f32[64]
  store %x[%1], %4 strides(1) extents(%2) : f32[64]
})");
}

std::string ptx_around(const std::string& program, const std::string& declarations) {
  std::string text = "// tile program\n";
  std::istringstream lines(program);
  for (std::string line; std::getline(lines, line);) text += "// " + line + "\n";
  return text + "// end\n.visible .entry k(\n" + declarations + ")\n.maxntid 128\n{\n}\n";
}

codegen::GpuCode tma_copy_code(const std::string& name) {
  const std::string program =
      "kernel @" + name + R"((%x: buffer<f32>, %y: buffer<f32>, %rows: index) {
  %0 = task : index
  %1 = index.mul %0, 4 : index
  %2 = ring 2 : ring<f32[4,32]>
  pipeline 2 0 to 1 produce(%3, %4) {
    tma_load %2[%4], %x[%1, 0] of(%rows, 32, 32)
    yield
  } consume(%5, %6) {
    %7 = read %2[%6, _] : f32[4,32]
    %8 = index.mul %1, 32 : index
    %9 = index.sub %rows, %1 : index
    store %y[%8], %7 strides(32, 1) extents(%9, _) : f32[4,32]
    yield
  }
})";
  codegen::GpuCode code;
  code.entry = name;
  code.ptx = ptx_around(program,
                        "  .param .u64 x,\n  .param .u64 y,\n  .param .u64 rows,\n"
                        "  .param .align 64 .b8 descriptor[128]\n");
  code.threads = 128;
  code.tma_descriptors = {{.buffer = 0,
                           .dtype = DType::kF32,
                           .rows = {2, 0},
                           .columns = {-1, kBoxColumns},
                           .stride = {-1, kBoxColumns},
                           .box_rows = kBoxRows,
                           .box_columns = kBoxColumns}};
  code.pdl = true;
  return code;
}

int run_alone(const std::string& test, const std::map<std::string, std::string>& environment) {
  if (!exists(test)) return -1;  // else nothing would run, and that passes
  const std::string filter = "--gtest_filter=" + test;
  const pid_t child = fork();
  if (child == 0) {
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    // These processes end with live objects on purpose, and looking for leaks takes seconds in
    // each.
    const char* const given = std::getenv("ASAN_OPTIONS");
    setenv("ASAN_OPTIONS",
           ((given == nullptr ? "" : given) + std::string(":detect_leaks=0")).c_str(), 1);
    alarm(60);
    execl("/proc/self/exe", "alone", filter.c_str(), "--gtest_also_run_disabled_tests",
          "--gtest_brief=1", nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string stub_driver_path() { return TENON_STUB_DRIVER_PATH; }

}  // namespace tenon::test
