// Programs with calls of cuDNN in context files: on the stubs of driver and library they give the
// bits of the programs that they came from, and open where a cuDNN is that can make their plans.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <tuple>

#include "kernels/check_program.h"
#include "kernels/cudnn/graph_call.h"
#include "kernels/cudnn/library.h"
#include "kernels/program_bytes.h"
#include "kernels/saved_program.h"
#include "tests/kernels/cudnn/stub_library.h"
#include "tests/kernels/program_samples.h"

namespace tenon::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Before anybody asks for cuDNN; a case that is run alone may have been given another.
const bool stub_is_used = setenv("TENON_CUDNN_LIBRARY", TENON_STUB_CUDNN, 0) == 0;

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string joined;
  for (const int64_t dim : dims) joined += fmt::format("{}{}", joined.empty() ? "" : ",", dim);
  return joined;
}

std::string bytes_text(const char* name, const std::string& type, const std::vector<int64_t>& dims,
                       const std::vector<std::byte>& bytes) {
  std::string hex;
  for (const std::byte byte : bytes) hex += fmt::format("{:02x}", static_cast<int>(byte));
  return fmt::format("  const %{}: {}[{}] = hex:{}\n", name, type, dims_text(dims), hex);
}

std::string weight(const char* name, const std::string& type, const std::vector<int64_t>& dims,
                   unsigned seed) {
  return bytes_text(name, type, dims, random_tensor(*parse_dtype(type), dims, seed).bytes);
}

std::string scales(const char* name, const std::vector<int64_t>& dims) {
  std::vector<std::byte> bytes(static_cast<size_t>(dims[0] * dims[1]));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(124 + i % 7);
  return bytes_text(name, "f8e8m0", dims, bytes);
}

struct CallSample {
  const char* name;
  std::string graph;
  std::vector<HostTensor> (*inputs)(int64_t batch);
  std::vector<std::string> calls;  // names, in order
  const char* candidate = "";
  const char* arch = "";

  Sample at(int64_t batch) const { return {name, graph, inputs(batch)}; }
  Settings settings(Settings from) const {
    from.tuning.candidate = candidate;
    if (*arch != '\0') from.gpu->arch = arch;
    return from;
  }
};

// A stem, a residual block, both poolings, all with channels first.
CallSample channels_first() {
  std::string text = "graph g {\n  input %x: f32[b,3,12,11]\n" +
                     weight("w0", "f32", {8, 3, 3, 3}, 1) + weight("c0", "f32", {8}, 2) +
                     weight("w1", "f32", {8, 8, 3, 3}, 3) + weight("c1", "f32", {8}, 4);
  text += R"(  %a: f32[b,8,12,11] = Conv@11(%x, %w0, %c0) {pads=[1,1,1,1]}
  %r: f32[b,8,12,11] = Relu@14(%a)
  %s: f32[b,8,12,11] = Conv@11(%r, %w1, %c1) {auto_pad="SAME_UPPER"}
  %t: f32[b,8,12,11] = Add@14(%s, %r)
  %u: f32[b,8,12,11] = Relu@14(%t)
  %p: f32[b,8,6,6] = MaxPool@12(%u) {ceil_mode=1, kernel_shape=[2,2], strides=[2,2]}
  %y: f32[b,8,5,5] = AveragePool@19(%p) {kernel_shape=[2,2]}
  output %y
}
)";
  return {"channels_first",
          text,
          [](int64_t batch) {
            return std::vector{random_tensor(DType::kF32, {batch, 3, 12, 11}, 5)};
          },
          {"cudnn_convolution", "cudnn_convolution", "cudnn_pooling", "cudnn_pooling"}};
}

// Filters are packed, three channels are filled up.
CallSample channels_last() {
  std::string text = "graph g {\n  input %x: f16[b,3,12,11]\n" +
                     weight("w0", "f16", {8, 3, 3, 3}, 1) + weight("c0", "f16", {8}, 2) +
                     weight("w1", "f16", {8, 8, 3, 3}, 3) + weight("c1", "f16", {8}, 4);
  text += R"(  %a: f16[b,8,12,11] = Conv@11(%x, %w0, %c0) {pads=[1,1,1,1]}
  %r: f16[b,8,12,11] = Relu@14(%a)
  %s: f16[b,8,12,11] = Conv@11(%r, %w1, %c1) {pads=[1,1,1,1]}
  %t: f16[b,8,12,11] = Add@14(%s, %r)
  %y: f16[b,8,12,11] = Relu@14(%t)
  output %y
}
)";
  return {"channels_last",
          text,
          [](int64_t batch) {
            return std::vector{random_tensor(DType::kF16, {batch, 3, 12, 11}, 5)};
          },
          {"cudnn_convolution", "cudnn_convolution"}};
}

CallSample one_dim() {
  return {"one_dim",
          "graph g {\n  input %x: f32[b,6,30]\n" + weight("w", "f32", {10, 3, 3}, 1) +
              "  %y: f32[b,10,15] = Conv@11(%x, %w) {dilations=[2], group=2, pads=[2,2], "
              "strides=[2]}\n  output %y\n}\n",
          [](int64_t batch) {
            return std::vector{random_tensor(DType::kF32, {batch, 6, 30}, 5)};
          },
          {"cudnn_convolution"}};
}

CallSample attention() {
  return {"attention",
          R"(graph g {
  input %q: f16[b,4,s,64]
  input %k: f16[b,2,s,64]
  input %v: f16[b,2,s,64]
  %y: f16[b,4,s,64] = tenon::Attention(%q, %k, %v, _, _, _, _) {causal_top_left=1, kv_heads=2, q_heads=4}
  output %y
}
)",
          [](int64_t batch) {
            return std::vector{random_tensor(DType::kF16, {batch, 4, 9, 64}, 7),
                               random_tensor(DType::kF16, {batch, 2, 9, 64}, 8),
                               random_tensor(DType::kF16, {batch, 2, 9, 64}, 9)};
          },
          {"cudnn_sdpa"},
          "cudnn_sdpa"};
}

// The stubs stand for Blackwell.
CallSample block_scaled() {
  return {"block_scaled",
          "graph g {\n  input %a: f8e4m3fn[m,160]\n  input %sa: f8e8m0[m,5]\n" +
              weight("b", "f8e4m3fn", {160, 24}, 1) + scales("sb", {5, 24}) +
              "  %y: f32[m,24] = tenon::ScaledDot(%a, %b, %sa, _, %sb) {alpha=0.5, block_a=32, "
              "block_b=32, result=\"f32\"}\n  output %y\n}\n",
          [](int64_t batch) {
            HostTensor scale{DType::kF8E8M0, {batch, 5}, {}};
            scale.bytes.assign(static_cast<size_t>(batch * 5), std::byte{126});
            return std::vector{random_tensor(DType::kF8E4M3FN, {batch, 160}, 5), scale};
          },
          {"cudnn_block_scaled_dot"},
          "cudnn_block_scaled_dot",
          "sm_100a"};
}

std::vector<CallSample> call_samples() {
  return {channels_first(), channels_last(), one_dim(), attention(), block_scaled()};
}

std::vector<std::string> calls_of(const Program& program) {
  std::vector<std::string> names;
  for (const CompiledLaunch& launch : program.launches) {
    if (launch.kind == LaunchKind::kLibraryCall) names.push_back(launch.call->name());
  }
  return names;
}

std::string saved(const std::string& graph, const std::vector<Settings>& targets,
                  const SaveOptions& options = {}) {
  const auto writer = ContextWriter::to_memory();
  for (const Settings& settings : targets) {
    const ir::Graph of_target = fused(graph, settings);
    save_program(make_program(of_target, settings), "part/0", settings, *writer, options);
  }
  writer->finish();
  return writer->take();
}

OpenedProgram opened(std::string_view bytes, const Settings& settings) {
  return open_program(ContextFile::from_bytes(bytes), "part/0", settings);
}

class SavedCallsTest : public StubGpuTest {
 protected:
  SavedCallsTest() {
    settings_.cudnn = true;
    settings_.device_ordinal = 0;
  }
  void TearDown() override { EXPECT_EQ(stub_.reports(), ""); }
};

TEST_F(SavedCallsTest, GiveTheSameBits) {
  for (const CallSample& sample : call_samples()) {
    SCOPED_TRACE(sample.name);
    const Settings settings = sample.settings(settings_);
    const ir::Graph graph = fused(sample.graph, settings);
    const std::string bytes = saved(sample.graph, {settings});
    EXPECT_EQ(calls_of(make_program(graph, settings)), sample.calls) << ir::print(graph);
    for (const int64_t batch : {1, 3}) {
      const auto expected = run(make_program(graph, settings), sample.at(batch));
      OpenedProgram again = opened(bytes, settings);
      EXPECT_EQ(again.recompiled, "");
      EXPECT_EQ(calls_of(again.program), sample.calls);
      expect_same_bits(run(std::move(again.program), sample.at(batch)), expected);
    }
  }
}

// As a model is compiled ahead where no GPU is.
TEST_F(SavedCallsTest, NeedNoGpuToBeWritten) {
  const CallSample sample = channels_last();
  Settings described = settings_;
  described.device_ordinal = -1;
  const ir::Graph graph = fused(sample.graph, settings_);
  const auto expected = run(make_program(graph, settings_), sample.at(2));
  const std::string bytes = saved(sample.graph, {described});
  expect_same_bits(run(opened(bytes, settings_).program, sample.at(2)), expected);
}

TEST_F(SavedCallsTest, SeveralTargetsAreInOneFile) {
  const CallSample sample = channels_last();
  const std::string here = settings_.gpu->arch, other = here == "sm_80" ? "sm_89" : "sm_80";
  Settings further = settings_;
  further.gpu = device::named_description(other).target();
  further.device_ordinal = -1;
  const std::string bytes = saved(sample.graph, {further, settings_});
  const auto programs = saved_programs(*ContextFile::from_bytes(bytes));
  ASSERT_EQ(programs.size(), 2u);
  for (const SavedProgram& program : programs) {
    EXPECT_EQ(program.cudnn, "9.19.0");
    EXPECT_THAT(program.describes, HasSubstr("with cuDNN 9.19.0"));
  }
  const ir::Graph graph = fused(sample.graph, settings_);
  const auto expected = run(make_program(graph, settings_), sample.at(2));
  OpenedProgram again = opened(bytes, settings_);
  EXPECT_EQ(again.recompiled, "");
  expect_same_bits(run(std::move(again.program), sample.at(2)), expected);
}

// Launches are put in order anew: calls wait and are waited for as in the program that was saved.
TEST_F(SavedCallsTest, OfAnotherArchitectureKeepTheirOrder) {
  const std::string other = settings_.gpu->arch == "sm_80" ? "sm_89" : "sm_80";
  for (const CallSample& sample : {channels_first(), channels_last(), attention()}) {
    SCOPED_TRACE(sample.name);
    Settings older = sample.settings(settings_);
    older.gpu = device::named_description(other).target();
    const ir::Graph graph = fused(sample.graph, older);
    const Program original = make_program(graph, older);
    OpenedProgram again = opened(saved(sample.graph, {older}), sample.settings(settings_));
    EXPECT_THAT(again.recompiled, HasSubstr(other));
    const auto& before = original.dependencies.launches();
    const auto& after = again.program.dependencies.launches();
    ASSERT_EQ(after.size(), before.size());
    for (size_t i = 0; i < after.size(); ++i) {
      if (original.launches[i].kind != LaunchKind::kLibraryCall) continue;
      EXPECT_EQ(after[i].kernel, before[i].kernel);
      EXPECT_FALSE(after[i].launches_dependents());
      const auto of = [](const LaunchDependencies::Use& use) {
        return std::tuple(use.slot, use.reads, use.writes);
      };
      EXPECT_TRUE(std::ranges::equal(after[i].uses, before[i].uses, {}, of, of));
    }
    const auto expected = run(make_program(graph, older), sample.at(2));
    expect_same_bits(run(std::move(again.program), sample.at(2)), expected);
  }
}

// Filters are turned around once more, from the graph's own.
TEST_F(SavedCallsTest, WeightsOutsideArePackedAnew) {
  for (const CallSample& sample : call_samples()) {
    SCOPED_TRACE(sample.name);
    const Settings settings = sample.settings(settings_);
    const ir::Graph graph = fused(sample.graph, settings);
    const auto expected = run(make_program(graph, settings), sample.at(2));
    const std::string bytes = saved(sample.graph, {settings}, {.weights = SavedWeights::kOutside});
    OpenedProgram again = opened(bytes, settings);
    EXPECT_EQ(calls_of(again.program), sample.calls);
    expect_same_bits(run(std::move(again.program), sample.at(2)), expected);
  }
}

// ---- what is in the bytes

TEST_F(SavedCallsTest, ACallReadBackMakesTheSameGraphs) {
  for (const CallSample& sample : call_samples()) {
    SCOPED_TRACE(sample.name);
    const Settings settings = sample.settings(settings_);
    const ir::Graph graph = fused(sample.graph, settings);
    const Program original = make_program(graph, settings);
    const Program again = std::move(opened(saved(sample.graph, {settings}), settings).program);
    for (size_t i = 0; i < original.launches.size(); ++i) {
      if (original.launches[i].kind != LaunchKind::kLibraryCall) continue;
      const auto problem = [i](const Program& program) -> const cudnn::Problem& {
        return dynamic_cast<const cudnn::GraphCall&>(*program.launches[i].call).problem();
      };
      EXPECT_EQ(again.launches[i].call->saved(), original.launches[i].call->saved());
      for (const int64_t open : {1, 7, 64}) {
        std::vector<int64_t> sizes;
        for (const Dim& dim : original.launches[i].indices) {
          sizes.push_back(dim.evaluate([&](std::string_view) { return open; }));
        }
        sizes.pop_back();
        EXPECT_EQ(cudnn::graph_of(problem(again), sizes).text(),
                  cudnn::graph_of(problem(original), sizes).text());
      }
    }
  }
}

TEST_F(SavedCallsTest, ChangedBytesAreRefusedOrSound) {
  for (const CallSample& sample : call_samples()) {
    const Settings settings = sample.settings(settings_);
    const ir::Graph graph = fused(sample.graph, settings);
    const std::string bytes = to_bytes(make_program(graph, settings), true);
    read_changed_bytes(bytes);
    // Bytes of the calls themselves, which are few among all.
    std::mt19937 random(12);
    const Program program = make_program(graph, settings);
    for (const CompiledLaunch& launch : program.launches) {
      if (launch.kind != LaunchKind::kLibraryCall) continue;
      const std::string call = launch.call->saved();
      const size_t at = bytes.find(call);
      ASSERT_NE(at, bytes.npos);
      for (size_t byte = 0; byte < call.size(); ++byte) {
        std::string changed = bytes;
        changed[at + byte] ^= static_cast<char>(1 << (random() % 8));
        (void)error_of([&] { check_program(program_from_bytes(changed).program, true, false); });
      }
    }
    EXPECT_EQ(to_bytes(program_from_bytes(bytes).program, false), to_bytes(program, false));
  }
}

TEST_F(SavedCallsTest, UnsoundCallsAreRefused) {
  const ir::Graph graph = fused(channels_first().graph, settings_);
  const Program sound = make_program(graph, settings_);
  const auto number = static_cast<size_t>(
      std::ranges::find(sound.launches, LaunchKind::kLibraryCall, &CompiledLaunch::kind) -
      sound.launches.begin());
  const auto refuses = [&](const std::function<void(Program&, CompiledLaunch&)>& change) {
    Program program = make_program(graph, settings_);
    EXPECT_NO_THROW(check_program(program, true));
    change(program, program.launches.at(number));
    EXPECT_THROW(check_program(program, true), UserError);
  };
  refuses([](Program&, CompiledLaunch& launch) { launch.call = nullptr; });
  refuses([](Program&, CompiledLaunch& launch) { launch.kind = LaunchKind::kCollective; });
  refuses([](Program& program, CompiledLaunch& launch) { launch.slots[0] = program.slots.size(); });
  refuses([](Program&, CompiledLaunch& launch) {
    launch.slots.erase(launch.slots.begin());
    launch.is_buffer.erase(launch.is_buffer.begin());
  });
  refuses([](Program&, CompiledLaunch& launch) {
    launch.indices.pop_back();
    launch.is_buffer.pop_back();
  });
  refuses([](Program&, CompiledLaunch& launch) { launch.indices[0] = Dim::symbol("nobody"); });
  refuses([](Program&, CompiledLaunch& launch) { launch.indices.back() = 1 << 30; });
  refuses([](Program& program, CompiledLaunch& launch) {
    program.slots[launch.slots.back()].bytes = 64;
  });
  refuses([](Program&, CompiledLaunch& launch) {
    std::reverse(launch.is_buffer.begin(), launch.is_buffer.end());
  });
  refuses([](Program&, CompiledLaunch& launch) {
    launch.slots[launch.slots.size() - 2] = launch.slots[1];  // the filter
  });
  refuses([number](Program& program, CompiledLaunch&) {
    program.dependencies.launches()[number].uses.clear();
  });
  refuses([number](Program& program, CompiledLaunch&) {
    program.dependencies.launches()[number].wait = codegen::Pdl::Wait::kFirst;
  });
  Program program = make_program(graph, settings_);
  EXPECT_THROW(check_program(program, /*on_gpu=*/false), UserError);
}

// ---- where it opens

TEST_F(SavedCallsTest, DisabledCudnnIsAReason) {
  const std::string bytes = saved(one_dim().graph, {settings_});
  Settings without = settings_;
  without.cudnn = false;
  const SavedFit fit = fit_of(*ContextFile::from_bytes(bytes), "part/0", without);
  EXPECT_EQ(fit.kind, SavedFit::Kind::kNot);
  EXPECT_THAT(fit.reason, AllOf(HasSubstr("enable_cudnn is 0"),
                                HasSubstr("compile the model again with enable_cudnn=0")));
  EXPECT_THAT(error_of([&] { opened(bytes, without); }), HasSubstr(fit.reason));
  // One that calls nothing opens as ever.
  const std::string plain = saved(samples()[0].graph, {settings_});
  EXPECT_EQ(saved_programs(*ContextFile::from_bytes(plain)).at(0).cudnn, "");
  EXPECT_EQ(fit_of(*ContextFile::from_bytes(plain), "part/0", without).kind,
            SavedFit::Kind::kAsStored);
}

// Each in a process of its own, which finds another cuDNN than the one that wrote the context.
class OtherCudnnTest : public SavedCallsTest {
 protected:
  // Runs the disabled case of the name with this context, as the version.
  static int run_elsewhere(const std::string& name, const std::string& bytes, int version,
                           const std::string& library = TENON_STUB_CUDNN) {
    std::string path = std::filesystem::temp_directory_path() / "tenon-calls-XXXXXX";
    close(mkstemp(path.data()));
    std::ofstream(path, std::ios::binary) << bytes;
    const int status = test::run_alone("OtherCudnnTest.DISABLED_" + name,
                                       {{"TENON_TEST_CONTEXT", path},
                                        {"TENON_TEST_CUDNN", std::to_string(version)},
                                        {"TENON_CUDNN_LIBRARY", library}});
    std::filesystem::remove(path);
    return status;
  }
  // Of the process that was started.
  static std::string context() {
    (void)cudnn::stub_library(std::atoi(std::getenv("TENON_TEST_CUDNN")));
    std::ifstream file(std::getenv("TENON_TEST_CONTEXT"), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void expect_refused(const Settings& settings, const testing::Matcher<std::string>& reason) {
    const std::string bytes = context();
    const SavedFit fit = fit_of(*ContextFile::from_bytes(bytes), "part/0", settings);
    EXPECT_EQ(fit.kind, SavedFit::Kind::kNot);
    EXPECT_THAT(fit.reason, reason);
    EXPECT_THAT(error_of([&] { opened(bytes, settings); }), HasSubstr(fit.reason));
  }
};

TEST_F(OtherCudnnTest, DISABLED_Absent) {
  expect_refused(settings_, AllOf(HasSubstr("pip install nvidia-cudnn-cu13"),
                                  HasSubstr("compile the model again with enable_cudnn=0")));
}
TEST_F(OtherCudnnTest, DISABLED_TooOld) {
  expect_refused(settings_, AllOf(HasSubstr("is cuDNN 9.7.0, 9.8 or a newer 9 is needed"),
                                  HasSubstr("compile the model again with enable_cudnn=0")));
}
TEST_F(OtherCudnnTest, DISABLED_TooOldForBlackwell) {
  expect_refused(block_scaled().settings(settings_),
                 AllOf(HasSubstr("needs cuDNN 9.19.0, and this is 9.18.0"),
                       HasSubstr("compile the model again with enable_cudnn=0")));
}
TEST_F(OtherCudnnTest, DISABLED_Convolves) {
  const std::string bytes = context();
  const ir::Graph graph = fused(channels_last().graph, settings_);
  const auto expected = run(make_program(graph, settings_), channels_last().at(2));
  OpenedProgram again = opened(bytes, settings_);
  EXPECT_EQ(again.recompiled, "");
  expect_same_bits(run(std::move(again.program), channels_last().at(2)), expected);
}
TEST_F(OtherCudnnTest, DISABLED_IsWrongForAttention) {
  EXPECT_THAT(error_of([&] { opened(context(), attention().settings(settings_)); }),
              AllOf(HasSubstr("cudnn_sdpa: SDPA of cuDNN 9.10.0 and 9.10.1 gives wrong results"),
                    HasSubstr("Compile the model again")));
}

TEST_F(OtherCudnnTest, AnAbsentOneIsAReason) {
  const std::string bytes = saved(one_dim().graph, {settings_});
  EXPECT_EQ(run_elsewhere("Absent", bytes, 91900, "/nowhere/libcudnn.so.9"), 0);
}
TEST_F(OtherCudnnTest, AnOldOneIsAReason) {
  const std::string bytes = saved(one_dim().graph, {settings_});
  EXPECT_EQ(run_elsewhere("TooOld", bytes, 90700), 0);
  const CallSample dot = block_scaled();
  EXPECT_EQ(run_elsewhere("TooOldForBlackwell", saved(dot.graph, {dot.settings(settings_)}), 91800),
            0);
}
TEST_F(OtherCudnnTest, NewerAndOlderOnesOpenIt) {
  const std::string bytes = saved(channels_last().graph, {settings_});
  for (const int version : {90800, 91400, 92000}) {
    EXPECT_EQ(run_elsewhere("Convolves", bytes, version), 0) << version;
  }
}
TEST_F(OtherCudnnTest, OneThatIsWrongIsRefused) {
  const CallSample sample = attention();
  const std::string bytes = saved(sample.graph, {sample.settings(settings_)});
  EXPECT_EQ(run_elsewhere("IsWrongForAttention", bytes, 91001), 0);
}

}  // namespace
}  // namespace tenon::kernels
