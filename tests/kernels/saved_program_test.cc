// Programs that were saved and opened again give the same bits as those that they came from.
#include "kernels/saved_program.h"
#include "kernels/device/assembler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <thread>

#include "base/error.h"
#include "codegen/tile/text.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/build_program.h"
#include "kernels/check_program.h"
#include "kernels/device/stream.h"
#include "kernels/program_bytes.h"
#include "kernels/running/compiled_kernels.h"
#include "kernels/selector.h"
#include "tests/kernels/program_samples.h"
#include "tests/kernels/running/allocation_count.h"

namespace tenon::kernels {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string saved(const std::string& graph, const std::vector<Settings>& targets) {
  const auto writer = ContextWriter::to_memory();
  for (const Settings& settings : targets) {
    const ir::Graph of_target = fused(graph, settings);
    save_program(make_program(of_target, settings), "part/0", settings, *writer);
  }
  writer->finish();
  return writer->take();
}

OpenedProgram opened(std::string_view bytes, const Settings& settings) {
  return open_program(ContextFile::from_bytes(bytes), "part/0", settings);
}

class SavedProgramTest : public testing::TestWithParam<Sample> {};

TEST_P(SavedProgramTest, GivesTheSameBitsOnTheHost) {
  const Sample& sample = GetParam();
  const Settings settings = host_settings();
  const ir::Graph graph = fused(sample.graph, settings);
  const auto expected = run_host(make_program(graph, settings), sample);
  const std::string bytes = saved(sample.graph, {settings});
  forget_compiled_kernels();
  OpenedProgram again = opened(bytes, settings);
  EXPECT_EQ(again.recompiled, "");
  EXPECT_EQ(again.program.fusions.size(), make_program(graph, settings).fusions.size());
  expect_same_bits(run_host(std::move(again.program), sample), expected);
}

TEST_P(SavedProgramTest, KernelsAreTheirTexts) {
  for (const Settings& settings : {host_settings(), gpu_settings("sm_90a")}) {
    const ir::Graph graph = fused(GetParam().graph, settings);
    const Program program = make_program(graph, settings);
    ASSERT_EQ(program.texts->kernels.size(), program.kernels.size());
    for (const ProgramTexts::Kernel& kernel : program.texts->kernels) {
      EXPECT_EQ(codegen::print(codegen::parse(kernel.text)), kernel.text);
    }
  }
}

// What is in the program's own bytes is either taken and sound, or refused.
TEST_P(SavedProgramTest, ChangedBytesAreRefusedOrSound) {
  const Settings settings = gpu_settings("sm_90a");
  const ir::Graph graph = fused(GetParam().graph, settings);
  const std::string bytes = to_bytes(make_program(graph, settings), true);
  read_changed_bytes(bytes);
  EXPECT_EQ(to_bytes(program_from_bytes(bytes).program, false),
            to_bytes(make_program(graph, settings), false));
}

INSTANTIATE_TEST_SUITE_P(Samples, SavedProgramTest, testing::ValuesIn(samples()),
                         [](const auto& sample) { return std::string(sample.param.name); });

// ---- on a GPU, which the stub is

class SavedForGpuTest : public StubGpuTest {};

TEST_F(SavedForGpuTest, GivesTheSameBits) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    const ir::Graph graph = fused(sample.graph, settings_);
    const auto expected = run(make_program(graph, settings_), sample);
    const std::string bytes = saved(sample.graph, {settings_});
    expect_same_bits(run(opened(bytes, settings_).program, sample), expected);
  }
}

// But for kernels that deal registers anew where NVRTC is not installed.
TEST_F(SavedForGpuTest, MachineCodeIsStored) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    const auto file = ContextFile::from_bytes(saved(sample.graph, {settings_}));
    const OpenedProgram again = open_program(file, "part/0", settings_);
    EXPECT_EQ(again.recompiled, "");
    size_t with = 0;
    for (const auto& code : again.program.gpu_code) {
      const bool is_left_out =
          !device::nvrtc(13).support && code->ptx.find("setmaxnreg") != std::string::npos;
      EXPECT_EQ(code->machine_code.empty(), is_left_out);
      if (is_left_out) continue;
      EXPECT_THAT(code->machine_code, HasSubstr(code->entry));
      ++with;
    }
    EXPECT_EQ(saved_programs(*file).at(0).machine_code, with);
  }
}

TEST_F(SavedForGpuTest, KernelsOfAnotherArchitectureAreCompiledAgain) {
  const std::string other = settings_.gpu->arch == "sm_80" ? "sm_89" : "sm_80";
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    const std::string bytes = saved(sample.graph, {gpu_settings(other)});
    const auto file = ContextFile::from_bytes(bytes);
    EXPECT_EQ(fit_of(*file, "part/0", settings_).kind, SavedFit::Kind::kCompiledAgain);
    OpenedProgram again = open_program(file, "part/0", settings_);
    EXPECT_THAT(again.recompiled, HasSubstr(other));
    EXPECT_THAT(again.recompiled, HasSubstr(settings_.gpu->arch));
    const ir::Graph graph = fused(sample.graph, gpu_settings(other));
    const auto expected = run(make_program(graph, gpu_settings(other)), sample);
    expect_same_bits(run(std::move(again.program), sample), expected);
  }
}

TEST_F(SavedForGpuTest, AFlippedWeightFailsTheSession) {
  const Sample sample = samples()[2];
  std::string bytes = saved(sample.graph, {settings_});
  {
    const auto file = ContextFile::from_bytes(bytes);
    for (const std::string_view name : file->names()) {
      if (!file->has_data(name)) continue;
      const DataSection data = file->data(name);
      const std::string_view whole(reinterpret_cast<const char*>(data.bytes.data()),
                                   data.bytes.size());
      bytes[bytes.find(whole) + 100] ^= 1;
      break;
    }
  }
  Program program = opened(bytes, settings_).program;
  EXPECT_THAT(
      error_of([&] { (void)run_on_device(std::move(program), *settings_.gpu, device_, {}); }),
      HasSubstr("SHA-256 differs"));
}

// ---- files

class SavedFileTest : public testing::Test {
 protected:
  SavedFileTest() {
    std::string name = std::filesystem::temp_directory_path() / "tenon-saved-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    const auto writer = ContextWriter::to_file(folder_, [](const Digest&) { return "model.bin"; });
    const Settings settings = host_settings();
    const ir::Graph graph = fused(sample_.graph, settings);
    save_program(make_program(graph, settings), "p", settings, *writer);
    writer->finish();
    expected_ = run_host(make_program(graph, settings), sample_);
  }
  ~SavedFileTest() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return (folder_ / "model.bin").string(); }

  std::filesystem::path folder_;
  const Sample sample_ = samples()[0];
  std::vector<HostTensor> expected_;
};

TEST_F(SavedFileTest, WeightsAreReadWhereTheyAreMapped) {
  const auto file = ContextFile::open(path());
  OpenedProgram again = open_program(file, "p", host_settings());
  size_t mapped = 0;
  for (const std::string_view name : file->names()) {
    if (!file->has_data(name)) continue;
    for (const Slot& slot : again.program.slots) {
      mapped += slot.data.get() == file->data(name).bytes.data() ? 1 : 0;
    }
  }
  EXPECT_GT(mapped, 0u);
  std::filesystem::remove(path());
  expect_same_bits(run_host(std::move(again.program), sample_), expected_);
}

TEST_F(SavedFileTest, ConcurrentSessionsOpenIt) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      OpenedProgram again = open_program(ContextFile::open(path()), "p", host_settings());
      expect_same_bits(run_host(std::move(again.program), sample_), expected_);
    });
  }
}

// ---- what does not fit

TEST(SavedTargets, EqualWeightsAreStoredOnce) {
  const Sample sample = samples()[2];
  const std::string one = saved(sample.graph, {gpu_settings("sm_90a")});
  const std::string two =
      saved(sample.graph, {gpu_settings("sm_90a"), gpu_settings("sm_100a"), host_settings()});
  const auto file = ContextFile::from_bytes(two);
  const std::vector<SavedProgram> programs = saved_programs(*file);
  ASSERT_EQ(programs.size(), 3u);
  for (const SavedProgram& program : programs) {
    EXPECT_EQ(program.name, "part/0");
    EXPECT_GT(program.weight_bytes, 4096u);
    EXPECT_GT(program.kernels, 0u);
    EXPECT_THAT(program.graph, HasSubstr("graph "));
  }
  std::map<const std::byte*, int> places;
  for (const std::string_view name : file->names()) {
    if (file->has_data(name) && name.find("/sm_") != name.npos) {
      ++places[file->data(name).bytes.data()];
    }
  }
  for (const auto& [place, count] : places) EXPECT_EQ(count, 2);
  EXPECT_EQ(opened(two, gpu_settings("sm_100a")).program.gpu_code.empty(), false);
  EXPECT_EQ(fit_of(*file, "part/0", gpu_settings("sm_90a")).kind, SavedFit::Kind::kAsStored);
}

TEST(SavedTargets, WhatIsNotThereIsNamed) {
  const Sample sample = samples()[2];
  const std::string bytes = saved(sample.graph, {gpu_settings("sm_90a")});
  EXPECT_THAT(error_of([&] { opened(bytes, host_settings()); }), HasSubstr("sm_90a"));
  const auto file = ContextFile::from_bytes(bytes);
  EXPECT_THAT(error_of([&] { open_program(file, "other", host_settings()); }),
              HasSubstr("no partition 'other'"));
  Settings small = gpu_settings("sm_90a");
  small.gpu->shared_bytes = 1;
  EXPECT_THAT(error_of([&] { opened(bytes, small); }), HasSubstr("shared memory"));
}

TEST(SavedTargets, AProcessorThatLacksFeaturesIsRefused) {
  const std::string bytes = saved(samples()[0].graph, {host_settings()});
  Settings less = host_settings();
  less.host.features.clear();
  EXPECT_THAT(error_of([&] { opened(bytes, less); }), HasSubstr("lacks"));
  Settings narrow = host_settings();
  narrow.host.vector_bits = 64;
  EXPECT_THAT(error_of([&] { opened(bytes, narrow); }), HasSubstr("bits"));
  Settings other = host_settings();
  other.host.arch = other.host.arch == codegen::HostArch::kX86_64 ? codegen::HostArch::kAArch64
                                                                  : codegen::HostArch::kX86_64;
  EXPECT_THAT(error_of([&] { opened(bytes, other); }), HasSubstr("none that runs here"));
}

// At every section, and wherever: a UserError, or for weights of the host one as they are checked.
TEST(SavedTargets, CutAndFlippedFilesAreErrors) {
  const Settings settings = host_settings();
  const std::string bytes = saved(samples()[2].graph, {settings});
  std::mt19937 random(3);
  for (int i = 0; i < 512; ++i) {
    std::string changed = bytes;
    if (i % 2 == 0) {
      changed.resize(random() % changed.size());
      EXPECT_THAT(error_of([&] { opened(changed, settings); }), Not(IsEmpty()));
    } else {
      changed[random() % changed.size()] ^= static_cast<char>(1 << (random() % 8));
      const auto read = [&] {
        opened(changed, settings);
        (void)saved_programs(*ContextFile::from_bytes(changed));  // the graph's text
      };
      EXPECT_THAT(error_of(read), Not(IsEmpty()));
    }
  }
}

// Lengths that are claimed and not there cost nothing; what is there less than twice the file.
TEST(SavedTargets, MemoryStaysBelowTwiceTheFile) {
  const Settings settings = gpu_settings("sm_90a");
  const std::string file = saved(samples()[2].graph, {settings});
  const ir::Graph graph = fused(samples()[2].graph, settings);
  const std::string program = to_bytes(make_program(graph, settings), true);
  const auto bytes_taken = [&](const std::string& bytes) {
    return test::count_allocated_bytes(
        [&] { (void)error_of([&] { (void)program_from_bytes(bytes); }); });
  };
  EXPECT_LT(bytes_taken(program), 2 * file.size());
  for (size_t at = 0; at + 8 <= program.size(); ++at) {
    std::string claims = program;
    for (size_t i = 0; i < 8; ++i)
      claims[at + i] = static_cast<char>(i < 5 ? 0xff : i == 7 ? 0 : 1);
    ASSERT_LT(bytes_taken(claims), 2 * file.size()) << at;
  }
  EXPECT_LT(test::count_allocated_bytes([&] { opened(file, settings); }), 2 * file.size());
}

TEST(SavedTargets, ACallIntoALibraryCannotBeSaved) {
  const Settings settings = gpu_settings("sm_90a");
  const ir::Graph graph = fused(samples()[0].graph, settings);
  Program program = make_program(graph, settings);
  program.launches.at(0).kind = LaunchKind::kLibraryCall;
  const auto writer = ContextWriter::to_memory();
  EXPECT_THAT(error_of([&] { save_program(program, "p", settings, *writer); }),
              HasSubstr("'" + program.launches[0].node + "'"));
}

// Whatever is out of range in a program, nobody runs it.
TEST(SavedTargets, UnsoundProgramsAreRefused) {
  const Settings settings = gpu_settings("sm_90a");
  const ir::Graph graph = fused(samples()[2].graph, settings);
  const auto refuses = [&](const std::function<void(Program&)>& change) {
    Program program = make_program(graph, settings);
    EXPECT_NO_THROW(check_program(program, true));
    change(program);
    EXPECT_THROW(check_program(program, true), UserError);
  };
  refuses([](Program& program) { program.launches[0].slots[0] = program.slots.size(); });
  refuses([](Program& program) { program.launches[0].slots.pop_back(); });
  refuses([](Program& program) { program.launches[0].kernel = program.kernels.size(); });
  refuses([](Program& program) { program.launches[0].threads = 2048; });
  refuses([](Program& program) { program.launches[0].tasks = Dim::symbol("nobody"); });
  refuses([](Program& program) { program.output_slots[0] = 0; });
  refuses([](Program& program) { program.slots[0].index = 7; });
  refuses([](Program& program) { program.slots.back().bytes = -1; });
  refuses([](Program& program) { program.dependencies = {}; });
  refuses([](Program& program) {
    program.dependencies.launches()[0].uses[0].slot = program.slots.size();
  });
  refuses([](Program& program) { program.shape_writes = {{0, DType::kI64, {1}}}; });
  refuses([](Program& program) {
    Slot& arena = *std::ranges::find(program.slots, Slot::Kind::kArena, &Slot::kind);
    arena.first = arena.last = static_cast<int>(program.launches.size());
  });
  refuses([](Program& program) {
    program.launches[0].checks = {{0, DType::kF32, 1, {ir::kNoValue, 1}}};
  });
}

// The text of a kernel that stores where others read what they were given.
TEST(SavedTargets, KernelsWriteToNoInputAndToNoConstant) {
  const codegen::Kernel kernel = codegen::parse(R"(kernel @fill(%y: buffer<f32>) {
  %0 = constant 1.0 : f32[4]
  store %y[0], %0 strides(1) : f32[4]
}
)");
  CompiledLaunch launch;
  launch.node = "node";
  launch.is_buffer = {true};
  launch.slots = {0};
  for (const Slot::Kind kind : {Slot::Kind::kOutput, Slot::Kind::kArena, Slot::Kind::kCounters}) {
    EXPECT_NO_THROW(check_kernel(kernel, launch, std::vector<Slot>{{kind, 0, {}, 0}}));
  }
  for (const Slot::Kind kind : {Slot::Kind::kInput, Slot::Kind::kConstant}) {
    EXPECT_THAT(error_of([&] {
                  check_kernel(kernel, launch, std::vector<Slot>{{kind, 0, {}, 0}});
                }),
                HasSubstr("writes what may only be read"));
  }
}

TEST(SavedTargets, ProgramsWithoutWeightsAreOnlyLookedAt) {
  const Settings settings = host_settings();
  const ir::Graph graph = fused(samples()[2].graph, settings);
  const auto writer = ContextWriter::to_memory();
  save_program(make_program(graph, settings), "part/0", settings, *writer,
               {.weights = SavedWeights::kNone});
  writer->finish();
  const std::string bytes = writer->take();
  EXPECT_EQ(saved_programs(*ContextFile::from_bytes(bytes)).at(0).weights, SavedWeights::kNone);
  EXPECT_THAT(error_of([&] { opened(bytes, settings); }), HasSubstr("without its weights"));
}

}  // namespace
}  // namespace tenon::kernels
