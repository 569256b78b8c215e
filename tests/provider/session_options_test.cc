// Provider options as a user passes them: what each does, and the errors of bad ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "harness.h"
#include "quantized_weight.h"

namespace tenon::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;

std::string product_model() {
  const Nvfp4Weight weight(32, 64);
  Graph graph("product");
  graph.input("x", kFloat, {"M", 64});
  weight.add_to(graph, "w");
  graph.node("MatMul", {"x", "w"}, {"h"}).node("Relu", {"h"}, {"y"});
  graph.output("y", kFloat, {"M", 32});
  return model(graph);
}

// A product and two ops that no provider but the CPU's runs.
std::string partly_claimable_model() {
  const Nvfp4Weight weight(32, 64);
  Graph graph("partly");
  graph.input("x", kFloat, {"M", 64});
  weight.add_to(graph, "w");
  graph.node("MatMul", {"x", "w"}, {"h"});
  graph.node("Cast", {"h"}, {"text"}, {{{"to", int64_t{kString}}}});
  graph.node("Cast", {"text"}, {"y"}, {{{"to", int64_t{kFloat}}}}).output("y", kFloat, {"M", 32});
  return model(graph);
}

std::string pointwise_model() {
  Graph graph;
  graph.input("x", kFloat, {"M"}).node("Neg", {"x"}, {"y"}).output("y", kFloat, {"M"});
  return model(graph);
}

Json report_of(const std::string& bytes, Options options, const Settings& settings = {}) {
  const TemporaryFolder folder;
  options["report_file"] = folder.path("report.json");
  const Session session(bytes, options, settings);
  Json report = Json::parse(read_file(folder.path("report.json")));
  // Published by rename: nothing else stays behind.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  return report;
}

TEST(Options, UnknownKeyListsTheValidOnes) {
  const std::string message = error_of([] { Session(product_model(), {{"no_such_option", "1"}}); });
  EXPECT_THAT(message, AllOf(HasSubstr("no_such_option"), HasSubstr("valid options"),
                             HasSubstr("precision_mode"), HasSubstr("report_file")));
}

TEST(Options, UnknownKeyNamesTheOneThatWasMeant) {
  const std::string message = error_of([] {
    Session(product_model(), {{"precison_mode", "int8"}});
  });
  EXPECT_THAT(message, HasSubstr("'precison_mode' (did you mean 'precision_mode'?)"));
}

TEST(Options, UnknownArchitectureNamesTheOneThatWasMeant) {
  const std::string message = error_of([] {
    Session(product_model(), {{"target_arch", "sm_90"}});
  });
  EXPECT_THAT(message, HasSubstr("'sm_90' is known (did you mean 'sm_90a'?)"));
}

struct BadValue {
  const char *key, *value, *accepts;
};

class BadValues : public ::testing::TestWithParam<BadValue> {};

TEST_P(BadValues, NameTheOptionTheValueAndWhatIsValid) {
  const auto [key, value, accepts] = GetParam();
  const std::string message = error_of([&] { Session(product_model(), {{key, value}}); });
  EXPECT_THAT(message, AllOf(HasSubstr(key), HasSubstr(value), HasSubstr(accepts)));
}

INSTANTIATE_TEST_SUITE_P(Options, BadValues,
                         ::testing::Values(BadValue{"claim", "some", "gainful | all"},
                                           BadValue{"precision_mode", "float7",
                                                    "exact | int8 | tf32"},
                                           BadValue{"target", "toaster", "auto | cpu | gpu"},
                                           BadValue{"require_full_claim", "perhaps", "0 | 1"},
                                           BadValue{"device_id", "7", "contradicts"},
                                           BadValue{"device_id", "zero", "the number of"},
                                           BadValue{"dump_dir", "", "a folder"},
                                           BadValue{"report_file", "", "a file name"}));

TEST(Options, OneNodePartitionsAreClaimedOnlyWhenAskedFor) {
  EXPECT_EQ(Session(pointwise_model()).claimed_nodes(), 0U);
  EXPECT_EQ(Session(pointwise_model(), {{"claim", "all"}}).claimed_nodes(), 1U);
}

TEST(Options, RequireFullClaimNamesWhatWasLeft) {
  const std::string message = error_of([] {
    Session(partly_claimable_model(), {{"require_full_claim", "1"}});
  });
  EXPECT_THAT(message,
              AllOf(HasSubstr("require_full_claim"), HasSubstr("Cast"), HasSubstr("text")));
  EXPECT_EQ(Session(product_model(), {{"require_full_claim", "1"}}).claimed_nodes(), 5U);
}

TEST(Options, RequireFullClaimIsMetByANodeThatGainsNothing) {
  // Asking for everything wins over "gains nothing".
  const std::string message = error_of([] {
    Session(pointwise_model(), {{"require_full_claim", "1"}});
  });
  EXPECT_THAT(message, HasSubstr("claim=all"));
}

TEST(Options, ExcludedOpsAndNodesAreLeftOutWithThatReason) {
  for (const auto& [key, value] : {std::pair{"exclude_ops", "Relu"}, {"exclude_nodes", "y"}}) {
    const Json report = report_of(product_model(), {{"claim", "all"}, {key, value}});
    const Json& left_out = report["graphs"][0]["left_out"];
    ASSERT_EQ(left_out.size(), 1U) << report.dump(2);
    EXPECT_EQ(left_out[0]["node"], "y");
    EXPECT_EQ(left_out[0]["op"], "Relu");
    EXPECT_THAT(left_out[0]["reason"].get<std::string>(), HasSubstr(key));
  }
}

std::vector<std::string> warnings_of(const std::string& bytes, const Options& options) {
  take_log();
  try {
    const Session session(bytes, options, {.log_level = ORT_LOGGING_LEVEL_WARNING});
  } catch (const Ort::Exception&) {  // what is left out may end the session; the log tells
  }
  std::vector<std::string> lines = take_log();
  std::erase_if(lines, [](const std::string& line) { return line.find("Tenon EP") == line.npos; });
  return lines;
}

TEST(Options, ExclusionsThatFitNoNodeAreToldOnce) {
  const auto lines = warnings_of(
      product_model(),
      {{"claim", "all"}, {"exclude_ops", "Softmx,Relu,MatMull"}, {"exclude_nodes", "h,nobody"}});
  EXPECT_THAT(lines, UnorderedElementsAre(HasSubstr("exclude_ops names what no node of the model "
                                                    "is: MatMull, Softmx;"),
                                          HasSubstr("exclude_nodes names what no node of the model "
                                                    "is: nobody;")));
}

TEST(Options, AnExcludedOpWithoutItsDomainIsTold) {
  Graph graph;
  graph.input("x", kFloat, {"M"});
  graph.node("Gelu", {"x"}, {"y"}, {.domain = "com.microsoft"}).output("y", kFloat, {"M"});
  EXPECT_THAT(warnings_of(model(graph), {{"exclude_ops", "Gelu"}}),
              ElementsAre(HasSubstr("Gelu (the model has com.microsoft::Gelu)")));
  EXPECT_THAT(warnings_of(model(graph), {{"exclude_ops", "com.microsoft::Gelu"}}), ElementsAre());
}

TEST(Options, ADeviceIdDoesNothingOnTheCpuAndIsTold) {
  EXPECT_THAT(warnings_of(product_model(), {{"device_id", "0"}}),
              ElementsAre(AllOf(HasSubstr("do nothing"), HasSubstr("device_id"))));
  EXPECT_THAT(warnings_of(product_model(), {}), ElementsAre());
}

// The runtime asks before and after it inlines a model's functions: the second answer counts.
std::string function_model() {
  Graph body;
  body.node("Neg", {"a"}, {"t"}).node("Abs", {"t"}, {"b"});
  Graph graph("caller");
  graph.input("x", kFloat, {"M"});
  graph.node("Twice", {"x"}, {"h"}, {.domain = "local"});
  graph.node("Twice", {"h"}, {"y"}, {.domain = "local"}).output("y", kFloat, {"M"});
  return model(graph, 23, 10, {{"Twice", {"a"}, {"b"}, body}});
}

TEST(Report, CountsInlinedFunctionsOnce) {
  const Json report = report_of(function_model(), {{"claim", "all"}});
  ASSERT_EQ(report["graphs"].size(), 1U) << report.dump(2);
  EXPECT_EQ(report["graphs"][0]["claimed"], 4);
  EXPECT_TRUE(report["graphs"][0]["left_out"].empty());
  EXPECT_EQ(report["graphs"][0]["partitions"][0]["fusions"].size(), 1U);
}

// Where functions are inlined round by round, each round is compiled before the next: what was
// claimed in the first stands in the graph of the second as a node of ours.
TEST(Report, KeepsThePartitionsOfEarlierRounds) {
  Graph body;
  body.node("Neg", {"a"}, {"t"}).node("Abs", {"t"}, {"b"});
  Graph graph("caller");
  graph.input("x", kFloat, {"M"}).node("Relu", {"x"}, {"inside"}).node("Neg", {"inside"}, {"h"});
  graph.node("Twice", {"h"}, {"i"}, {.domain = "local"});
  graph.node("Exp", {"i"}, {"y"}).output("y", kFloat, {"M"});
  const Json report = report_of(model(graph, 23, 10, {{"Twice", {"a"}, {"b"}, body}}),
                                {{"claim", "all"}}, {.inline_ahead = false});
  ASSERT_EQ(report["graphs"].size(), 1U) << report.dump(2);
  const Json& caller = report["graphs"][0];
  EXPECT_EQ(caller["nodes"], 5) << report.dump(2);
  EXPECT_EQ(caller["claimed"], 5);
  EXPECT_TRUE(caller["tensors"].contains("inside")) << caller["tensors"].dump(2);
  EXPECT_TRUE(caller["left_out"].empty()) << caller["left_out"].dump(2);
  ASSERT_EQ(caller["partitions"].size(), 3U);
  for (const Json& partition : caller["partitions"]) {
    EXPECT_EQ(partition["fusions"].size(), 1U) << partition.dump(2);
  }
}

TEST(Options, ExclusionsWithinFunctionsFitSomething) {
  EXPECT_THAT(warnings_of(function_model(), {{"claim", "all"}, {"exclude_ops", "Abs"}}),
              ElementsAre());
  EXPECT_THAT(warnings_of(function_model(), {{"claim", "all"}, {"exclude_ops", "Abz"}}),
              ElementsAre(HasSubstr("Abz")));
}

// A custom op as applications bring them: for the runtime alone, with a kernel of its own.
struct NegateKernel {
  void Compute(OrtKernelContext* context) {
    const Ort::KernelContext kernel(context);
    const auto input = kernel.GetInput(0);
    const std::vector<int64_t> shape = input.GetTensorTypeAndShapeInfo().GetShape();
    auto* output = kernel.GetOutput(0, shape).GetTensorMutableData<float>();
    const size_t count = input.GetTensorTypeAndShapeInfo().GetElementCount();
    std::transform(input.GetTensorData<float>(), input.GetTensorData<float>() + count, output,
                   std::negate<>());
  }
};

struct NegateOp : Ort::CustomOpBase<NegateOp, NegateKernel> {
  NegateOp() { version = 24; }  // an older runtime refuses its headers' own
  void* CreateKernel(const OrtApi&, const OrtKernelInfo*) const { return new NegateKernel; }
  const char* GetName() const { return "Negate"; }
  size_t GetInputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(size_t) const {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
  size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetOutputType(size_t) const {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
};

TEST(Options, ExclusionsThatFitNoNodeAreToldBesideCustomOps) {
  env();  // opens the runtime, whose API the domain uses
  const NegateOp negate;
  Ort::CustomOpDomain domain("my.ops");
  domain.Add(&negate);
  Graph graph;
  graph.input("x", kFloat, {"M"}).node("Negate", {"x"}, {"h"}, {.domain = "my.ops"});
  graph.node("Abs", {"h"}, {"y"}).output("y", kFloat, {"M"});
  take_log();
  const Session session(model(graph), {{"claim", "all"}, {"exclude_ops", "Abz,my.ops::Negate"}},
                        {.log_level = ORT_LOGGING_LEVEL_WARNING, .custom_ops = domain});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(session.run({{"x", filled({3}, 2)}}).at(0).at(2), 2);
  std::vector<std::string> lines = take_log();
  std::erase_if(lines, [](const std::string& line) { return line.find("exclude_") == line.npos; });
  EXPECT_THAT(lines,
              ElementsAre(HasSubstr("exclude_ops names what no node of the model is: Abz;")));
}

TEST(Options, RequireFullClaimIsMetByInlinedFunctions) {
  const Session session(function_model(), {{"claim", "all"}, {"require_full_claim", "1"}});
  EXPECT_EQ(session.run({{"x", filled({3}, -2)}}).at(0).at(2), 2);
}

// Round by round: what the first left may be inlined and claimed in the second.
TEST(Options, RequireFullClaimWaitsForFunctionsToBeInlined) {
  if (!runtime_at_least(27)) GTEST_SKIP() << "nothing can be refused after Compile before 1.27";
  const auto caller = [](const std::string& last, const std::vector<Dim>& dims) {
    Graph body;
    body.node("Neg", {"a"}, {"t"}).node("Abs", {"t"}, {"b"});
    Graph graph("caller");
    graph.input("x", kFloat, {2, 2}).node("Relu", {"x"}, {"h"});
    graph.node("Twice", {"h"}, {"i"}, {.domain = "local"});
    graph.node(last, {"i"}, {"y"}).output("y", kFloat, dims);
    return model(graph, 23, 10, {{"Twice", {"a"}, {"b"}, body}});
  };
  const Options options = {{"claim", "all"}, {"require_full_claim", "1"}};
  const Session session(caller("Exp", {2, 2}), options, {.inline_ahead = false});
  EXPECT_EQ(session.run({{"x", filled({2, 2}, 0)}}).at(0).at(3), 1);
  const std::string message =
      error_of([&] { Session(caller("Det", {}), options, {.inline_ahead = false}); });
  EXPECT_THAT(message, AllOf(HasSubstr("require_full_claim"), HasSubstr("Det")));
}

TEST(Options, RequireFullClaimRefusesControlFlow) {
  Graph yes("yes"), no("no");
  yes.node("Neg", {"x"}, {"y_yes"}).output("y_yes", kFloat, {"M"});
  no.node("Abs", {"x"}, {"y_no"}).output("y_no", kFloat, {"M"});
  Graph graph;
  graph.input("x", kFloat, {"M"}).input("cond", kBool, {});
  graph.node("If", {"cond"}, {"y"}, {{{"then_branch", &yes}, {"else_branch", &no}}});
  graph.output("y", kFloat, {"M"});
  const std::string message = error_of([&] {
    Session(model(graph), {{"claim", "all"}, {"require_full_claim", "1"}});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("require_full_claim"), HasSubstr("If")));
}

TEST(Report, WarnsOfWhatNobodyElseRuns) {
  take_log();
  error_of([] {
    Session(product_model(), {{"exclude_ops", "DequantizeLinear"}},
            {.log_level = ORT_LOGGING_LEVEL_WARNING});
  });
  EXPECT_THAT(take_log(), Contains(AllOf(HasSubstr("DequantizeLinear 'w_f32' is left out"),
                                         HasSubstr("exclude_ops"))));
}

TEST(Report, WarnsOnceForEachReason) {
  Graph graph;
  graph.input("x", kFloat, {"M", 64});
  std::string operand = "x";
  for (const std::string name : {"a", "b", "c", "d", "e"}) {
    Nvfp4Weight(64, 64).add_to(graph, name);
    graph.node("MatMul", {operand, name}, {"of_" + name});
    operand = "of_" + name;
  }
  graph.output(operand, kFloat, {"M", 64});
  EXPECT_THAT(warnings_of(model(graph), {{"exclude_ops", "DequantizeLinear"}}),
              ElementsAre(HasSubstr("and 2 more are left out, and no stock provider runs them: "
                                    "excluded by the option exclude_ops")));
}

TEST(Report, TellsTypesAndSizesOfTensors) {
  Graph graph;
  graph.input("x", kFloat, {"M", 64}).constant("w", filled({64}, 1));
  graph.node("Mul", {"x", "w"}, {"h"}).node("Gelu", {"h"}, {"g"}, {.domain = "com.microsoft"});
  graph.node("Shape", {"g"}, {"y"}).output("y", kInt64, {2}).output("g", kFloat, {"M", 64});
  EXPECT_EQ(report_of(model(graph), {})["graphs"][0]["tensors"],
            Json({{"x", "f32[M,64]"}, {"h", "f32[M,64]"}, {"g", "f32[M,64]"}, {"y", "i64[2]"}}));
}

TEST(Report, CallsTheProcessorByAName) {
  const std::string name = report_of(product_model(), {})["device"]["name"];
  EXPECT_THAT(name, Not(::testing::StartsWith("0x")));
  EXPECT_GT(name.size(), 3U);
}

TEST(Profile, EventsOfLaunchesNameTheProvider) {
  if (!runtime_at_least(25)) GTEST_SKIP() << "plugins add events to a profile from 1.25 on";
  const TemporaryFolder folder;
  Ort::SessionOptions options;
  options.EnableProfiling(folder.path("profile").c_str());
  options.AppendExecutionProvider_V2(env(), {tenon_device(env(), -1)},
                                     std::unordered_map<std::string, std::string>{});
  const std::string bytes = product_model();
  Ort::Session session(env(), bytes.data(), bytes.size(), options);
  Ort::AllocatorWithDefaultOptions allocator;
  const std::array<int64_t, 2> dims = {1, 64};
  Ort::Value x = Ort::Value::CreateTensor<float>(allocator, dims.data(), dims.size());
  std::fill_n(x.GetTensorMutableData<float>(), 64, 1.0F);
  const char *input = "x", *output = "y";
  session.Run(Ort::RunOptions{}, &input, &x, 1, &output, 1);
  const Json events = Json::parse(read_file(session.EndProfilingAllocated(allocator).get()));
  int launches = 0;
  for (const Json& event : events) {
    if (event["cat"] != "Kernel") continue;
    EXPECT_EQ(event["args"]["provider"], kTenon) << event.dump();
    ++launches;
  }
  EXPECT_GT(launches, 0);
}

TEST(Report, TellsClaimsFusionsKernelsAndReasons) {
  const Json report = report_of(partly_claimable_model(), {});
  EXPECT_EQ(report["schema"], 1);
  EXPECT_EQ(report["provider"], kTenon);
  EXPECT_EQ(report["runtime"], api_base().GetVersionString());
  EXPECT_EQ(report["device"]["kind"], "cpu");
  EXPECT_EQ(report["host"], report["device"]["name"]);
  EXPECT_FALSE(report["device"]["features"].empty());
  EXPECT_EQ(report["options"]["claim"], "gainful");

  ASSERT_EQ(report["graphs"].size(), 1U);
  const Json& graph = report["graphs"][0];
  EXPECT_EQ(graph["name"], "partly");
  EXPECT_EQ(graph["nodes"], 6);
  EXPECT_EQ(graph["claimed"], 4);
  ASSERT_EQ(graph["left_out"].size(), 2U);
  for (const Json& left : graph["left_out"])
    EXPECT_FALSE(left["reason"].get<std::string>().empty());

  ASSERT_EQ(graph["partitions"].size(), 1U);
  const Json& partition = graph["partitions"][0];
  EXPECT_EQ(partition["inputs"], Json({"x"}));
  EXPECT_EQ(partition["outputs"], Json({"h"}));
  EXPECT_EQ(partition["nodes"].size(), 4U);
  EXPECT_EQ(partition["weight_bytes"], 32 * 64 / 2 + 32 * 4 + 4);
  EXPECT_GT(partition["packed_bytes"], 0);
  ASSERT_EQ(partition["fusions"].size(), 1U);
  const Json& fusion = partition["fusions"][0];
  EXPECT_EQ(fusion["kind"], "tenon::ScaledDot");
  EXPECT_FALSE(fusion["chosen"].get<std::string>().empty());
  EXPECT_THAT(fusion["nodes"], Contains("h"));
  EXPECT_FALSE(fusion["candidates"].empty());
}

TEST(Report, OneLineInTheLogSumsUp) {
  take_log();
  const Session session(partly_claimable_model(), {}, {.log_level = ORT_LOGGING_LEVEL_INFO});
  EXPECT_THAT(take_log(),
              Contains(AllOf(HasSubstr("[Tenon EP] partly: 4 of 6 nodes in 1 partition"),
                             HasSubstr("Cast"))));
}

TEST(Report, AnUnwritableFileIsAnErrorAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::string file = folder.path("absent/report.json");
  const std::string message = error_of([&] { Session(product_model(), {{"report_file", file}}); });
  EXPECT_THAT(message, AllOf(HasSubstr("report_file"), HasSubstr(file), HasSubstr("writable")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Report, AFolderInItsPlaceIsAnErrorAndLeavesNothing) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path("report.json"));
  const std::string message = error_of([&] {
    Session(product_model(), {{"report_file", folder.path("report.json")}});
  });
  EXPECT_THAT(message, HasSubstr("report_file"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Report, WhatIsNotARegularFileIsLeftAlone) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("fifo").c_str(), 0600), 0);
  const std::string message = error_of([&] {
    Session(product_model(), {{"report_file", folder.path("fifo")}});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("report_file"), HasSubstr("FIFO")));
  EXPECT_TRUE(std::filesystem::is_fifo(folder.path("fifo")));
}

TEST(Report, ConcurrentSessionsShareOneFile) {
  const TemporaryFolder folder;
  const Options options = {{"claim", "all"},
                           {"report_file", folder.path("report.json")},
                           {"dump_dir", folder.path("dump")}};
  const std::string bytes = pointwise_model();
  env();  // made once, before threads use it
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) EXPECT_NO_THROW(Session(bytes, options));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Json::parse(read_file(folder.path("report.json")))["graphs"][0]["claimed"], 1);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(Dump, WritesEveryStageOfGraphAndKernels) {
  const TemporaryFolder folder;
  const Session session(product_model(), {{"dump_dir", folder.path("dump")}});
  std::string graphs, kernels;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path("dump"))) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".graph.txt")) graphs += name + " ";
    if (name.find(".llvm") != std::string::npos || name.find(".tile") != std::string::npos) {
      kernels += name + " ";
    }
  }
  EXPECT_THAT(graphs, AllOf(HasSubstr("imported"), HasSubstr("match_scaled_dot"),
                            HasSubstr("fuse_epilogues")));
  EXPECT_THAT(kernels, AllOf(HasSubstr(".tile."), HasSubstr(".llvm.")));
}

TEST(Dump, AFolderThatCannotBeMadeIsAnError) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("file")) << "in the way";
  const std::string message = error_of([&] {
    Session(product_model(), {{"dump_dir", folder.path("file/dump")}});
  });
  EXPECT_THAT(message, HasSubstr("dump_dir"));
}

TEST(Options, AFailedSessionLeavesTheNextOneWorking) {
  error_of([] { Session("nonsense"); });
  error_of([] { Session(product_model(), {{"no_such_option", "1"}}); });
  const Session session(product_model());
  EXPECT_THAT(session.run({{"x", filled({2, 64}, 1)}}).at(0).dims, ElementsAre(2, 32));
}

}  // namespace
}  // namespace tenon::testing
