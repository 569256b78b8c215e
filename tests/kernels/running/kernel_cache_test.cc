// Kernels that outlive the process: compiled and assembled once, read from a folder after that.
#include "kernels/device/kernel_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/content_cache.h"
#include "codegen/gpu_code_bytes.h"
#include "codegen/tile/content.h"
#include "kernels/device/assembler.h"
#include "kernels/running/compiled_kernels.h"
#include "tests/kernels/running/add_kernel.h"
#include "tests/kernels/running/allocation_count.h"

namespace tenon::kernels {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using test::add_to_all;

constexpr int kThreads = 64;

struct CountingAssembler : device::Assembler {
  mutable int calls = 0;
  device::MachineCode assemble(std::string_view ptx, std::string_view arch) const override {
    ++calls;
    return {std::string(ptx) + std::string(arch), "remarks"};
  }
};

class KernelCacheTest : public ::testing::Test {
 protected:
  KernelCacheTest() {
    std::string name = fs::temp_directory_path() / "tenon-kernels-XXXXXX";
    parent_ = ::mkdtemp(name.data());
    folder_ = parent_ / "cache";
    forget_compiled_kernels();
  }
  ~KernelCacheTest() override {
    forget_compiled_kernels();
    fs::remove_all(parent_);
  }

  // As another process would: nothing is in memory.
  template <typename Action>
  std::shared_ptr<DiskCache> in_new_process(const Action& action) {
    forget_compiled_kernels();
    cache_ = std::make_shared<DiskCache>(folder_, 1 << 20);
    action();
    return std::exchange(cache_, nullptr);
  }
  auto compile(const codegen::Kernel& kernel, int threads = kThreads,
               const codegen::GpuTarget& target = {}, const codegen::StageSink& sink = {}) const {
    return compile_gpu_once(kernel, codegen::content_of(kernel), threads, target, sink,
                            cache_.get());
  }
  std::string assembled(const device::AssemblerAnswer& answer, const std::string& ptx,
                        const std::string& arch = "sm_80") const {
    const auto code = device::assemble_once(answer, sha256(ptx), ptx, arch, cache_.get());
    return code->bytes + "|" + code->remarks;
  }
  std::vector<fs::path> entries() const {
    std::vector<fs::path> found;
    if (!fs::exists(folder_)) return found;
    for (const auto& file : fs::directory_iterator(folder_)) found.push_back(file.path());
    return found;
  }

  fs::path parent_, folder_;
  std::shared_ptr<DiskCache> cache_;  // of the process that is played
};

TEST_F(KernelCacheTest, AnotherProcessNeedsNoCompiler) {
  const codegen::Kernel kernel = add_to_all("k", "1.0");
  codegen::GpuCode first, second;
  const auto cold = in_new_process([&] { first = *compile(kernel).code; });
  const auto warm = in_new_process([&] { second = *compile(add_to_all("l", "1.0")).code; });
  EXPECT_EQ(codegen::to_bytes(first), codegen::to_bytes(second));
  EXPECT_EQ(cold->counts().at("ptx").misses, 1);
  EXPECT_EQ(warm->counts().at("ptx").hits, 1);
  EXPECT_EQ(warm->counts().at("ptx").misses, 0);
  EXPECT_THAT(warm->problems(), IsEmpty());
}

TEST_F(KernelCacheTest, WhatIsBakedInTellsEntriesApart) {
  const codegen::Kernel kernel = add_to_all("k", "1.0");
  in_new_process([&] { compile(kernel); });
  const auto other = in_new_process([&] {
    compile(add_to_all("k", "2.0"));
    compile(kernel, 2 * kThreads);
    for (const auto change : {+[](codegen::GpuTarget& t) { t.arch = "sm_80"; },
                              +[](codegen::GpuTarget& t) { t.shared_bytes -= 1; },
                              +[](codegen::GpuTarget& t) { t.sm_count = 7; },
                              +[](codegen::GpuTarget& t) { t.threads = 512; },
                              +[](codegen::GpuTarget& t) { t.pipelines = !t.pipelines; }}) {
      codegen::GpuTarget target;
      change(target);
      compile(kernel, kThreads, target);
    }
  });
  EXPECT_EQ(other->counts().at("ptx").hits, 0);
  EXPECT_EQ(other->counts().at("ptx").misses, 7);
  EXPECT_THAT(device::compiler_build(), HasSubstr("LLVM 1"));
}

TEST_F(KernelCacheTest, WithoutAFolderNothingIsKept) {
  in_new_process([&] { compile(add_to_all("k", "1.0")); });
  compile(add_to_all("k", "3.0"));
  EXPECT_EQ(entries().size(), 1U);
}

TEST_F(KernelCacheTest, ADumpCompilesAnew) {
  const codegen::Kernel kernel = add_to_all("k", "1.0");
  in_new_process([&] { compile(kernel); });
  int stages = 0;
  const auto dumped = in_new_process([&] {
    compile(kernel, kThreads, {},
            [&](std::string_view, std::string_view, std::string_view) { ++stages; });
  });
  EXPECT_GE(stages, 5);
  EXPECT_THAT(dumped->counts(), IsEmpty());
}

TEST_F(KernelCacheTest, ADamagedEntryIsCompiledAnewAndMended) {
  const codegen::Kernel kernel = add_to_all("k", "1.0");
  std::string ptx;
  in_new_process([&] { ptx = compile(kernel).code->ptx; });
  ASSERT_EQ(entries().size(), 1U);
  fs::resize_file(entries()[0], fs::file_size(entries()[0]) / 2);
  const auto mending = in_new_process([&] { EXPECT_EQ(compile(kernel).code->ptx, ptx); });
  EXPECT_THAT(mending->problems(), ElementsAre(HasSubstr("made anew")));
  const auto mended = in_new_process([&] { EXPECT_EQ(compile(kernel).code->ptx, ptx); });
  EXPECT_EQ(mended->counts().at("ptx").hits, 1);
  EXPECT_THAT(mended->problems(), IsEmpty());
}

// Its checksum is right, and still it is no kernel.
TEST_F(KernelCacheTest, AnEntryThatMeansNothingIsCompiledAnew) {
  const codegen::Kernel kernel = add_to_all("k", "1.0");
  codegen::GpuCode code;
  in_new_process([&] { code = *compile(kernel).code; });
  const std::string name = entries().at(0).filename();
  Digest key{};
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<uint8_t>(std::stoi(name.substr(name.size() - 64 + 2 * i, 2), nullptr, 16));
  }
  codegen::GpuCode others = code;
  codegen::TmaDescriptor& descriptor = others.tma_descriptors.emplace_back();
  descriptor.buffer = 1;  // the kernel has one
  descriptor.dtype = DType::kF32;
  descriptor.box_rows = descriptor.box_columns = 1;
  for (const std::string& bytes : {std::string("nonsense"), codegen::to_bytes(others)}) {
    DiskCache(folder_, 1 << 20).put("ptx", key, bytes);
    const auto cache = in_new_process([&] { EXPECT_EQ(compile(kernel).code->ptx, code.ptx); });
    EXPECT_EQ(cache->problems().size(), 1U);
    EXPECT_EQ(cache->counts().at("ptx").misses, 1);
    EXPECT_EQ(cache->counts().at("ptx").hits, 0);
  }
}

// Texts and TMA descriptors: each is there twice at most, as bytes and as what they mean.
TEST_F(KernelCacheTest, ReadingTakesLessThanTwiceTheFile) {
  constexpr size_t kNames = 4096;  // of files and folders
  codegen::GpuCode long_text{"k", std::string(500000, 'p'), 64, 0, {}, false};
  codegen::GpuCode many_descriptors{"k", "p", 64, 0, {}, false};
  codegen::TmaDescriptor descriptor;
  descriptor.dtype = DType::kF32;
  descriptor.box_rows = descriptor.box_columns = 1;
  many_descriptors.tma_descriptors.resize(5000, descriptor);
  for (const codegen::GpuCode& code : {long_text, many_descriptors}) {
    const Digest key = sha256(code.ptx);
    const auto cache = std::make_shared<DiskCache>(folder_, 1 << 20);
    const auto read = [&] {
      device::read_or_make(cache.get(), "ptx", key, codegen::gpu_code_from_bytes, codegen::to_bytes,
                           [&] { return codegen::GpuCode(); });
    };
    cache->put("ptx", key, codegen::to_bytes(code));
    const fs::path file = folder_ / ("tenon-ptx-" + hex(key));
    const size_t size = fs::file_size(file);
    EXPECT_LE(test::count_allocated_bytes(read), 2 * size + kNames);
    EXPECT_EQ(cache->counts().at("ptx").hits, 1);
    std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).put('!');
    EXPECT_LE(test::count_allocated_bytes([&] { cache->get("ptx", key); }), kNames);
  }
}

TEST_F(KernelCacheTest, AFolderThatIsRefusedCostsAWarningOnly) {
  fs::create_directory(folder_);
  fs::permissions(folder_, fs::perms::all);
  const auto cache =
      in_new_process([&] { EXPECT_FALSE(compile(add_to_all("k", "1.0")).code->ptx.empty()); });
  EXPECT_THAT(cache->problems().at(0), HasSubstr("others may write"));
  EXPECT_THAT(entries(), IsEmpty());
}

TEST_F(KernelCacheTest, AnotherProcessNeedsNoAssembler) {
  const CountingAssembler assembler;
  const device::AssemblerAnswer answer{Support::yes(), &assembler, "path", "build 1"};
  in_new_process([&] { EXPECT_EQ(assembled(answer, "a"), "asm_80|remarks"); });
  const auto warm = in_new_process([&] { EXPECT_EQ(assembled(answer, "a"), "asm_80|remarks"); });
  EXPECT_EQ(assembler.calls, 1);
  EXPECT_EQ(warm->counts().at("cubin").hits, 1);
  // Another text, another GPU, another assembler.
  device::AssemblerAnswer newer = answer;
  newer.build = "build 2";
  in_new_process([&] {
    assembled(answer, "b");
    assembled(answer, "a", "sm_90a");
    assembled(newer, "b");
  });
  EXPECT_EQ(assembler.calls, 3);
}

TEST_F(KernelCacheTest, ADamagedCubinIsAssembledAnew) {
  const CountingAssembler assembler;
  const device::AssemblerAnswer answer{Support::yes(), &assembler, "path", "build 1"};
  in_new_process([&] { assembled(answer, "a"); });
  std::fstream(entries().at(0), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(-1, std::ios::end)
      .put('!');
  const auto cache = in_new_process([&] { EXPECT_EQ(assembled(answer, "a"), "asm_80|remarks"); });
  EXPECT_EQ(assembler.calls, 2);
  EXPECT_THAT(cache->problems(), ElementsAre(HasSubstr("SHA-256")));
}

}  // namespace
}  // namespace tenon::kernels
