// Context models on GPUs that the stub driver plays: written by one session, opened by another. The
// runtime writes files; models are given from memory, so that ep.context_file_path says where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness.h"
#include "product_model.h"
#include "quantized_weight.h"
#include "stub_driver.h"

namespace tenon::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const bool stub_is_used = (use_stub_driver("devices 1; arch 9.0"), true);

const Tensor& x() {
  static const Tensor* const made = new Tensor(random_floats({7, 64}, 3));
  return *made;
}

class ContextSession : public ::testing::TestWithParam<bool> {
 protected:
  std::string path() const { return folder_.path("model_ctx.onnx"); }
  Settings settings(bool writes, int gpu) const {
    Settings made{.cpu_fallback = false, .log_level = ORT_LOGGING_LEVEL_WARNING, .gpu = gpu};
    made.entries = {{"ep.context_file_path", path()}};
    if (writes) {
      made.entries.emplace_back("ep.context_enable", "1");
      made.entries.emplace_back("ep.context_embed_mode", GetParam() ? "1" : "0");
    }
    return made;
  }
  Session write(const Options& options = {}, int gpu = 0) const {
    Options all = options;
    all["claim"] = "all";
    return Session(product_model(), all, settings(true, gpu));
  }
  Session open(int gpu = 0) const {
    return Session(read_file(path()), {{"report_file", folder_.path("report.json")}},
                   settings(false, gpu));
  }
  Json opened_partition() const {
    const Json report = Json::parse(read_file(folder_.path("report.json")));
    return report.at("graphs").at(0).at("partitions").at(0);
  }
  // Beside the context model; empty: there is none.
  std::string data() const {
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().filename().string().starts_with("model_ctx_tenon_")) return entry.path();
    }
    return "";
  }
  const TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Forms, ContextSession, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Embedded" : "Beside"; });

TEST_P(ContextSession, OpensOnTheGpuThatItWasWrittenFor) {
  const Tensor expected = write().run({{"x", x()}}).at(0);
  EXPECT_EQ(data().empty(), GetParam());
  const Session opened = open();
  EXPECT_EQ(opened.run({{"x", x()}}).at(0).bytes, expected.bytes);
  const Json context = opened_partition().at("context");
  EXPECT_EQ(context.at("nodes"), 2);
  EXPECT_EQ(stub_reports(), "");
}

TEST_P(ContextSession, HoldsSeveralGpusAndOpensWithTheOneThatIsHere) {
  write({{"target_arch", "sm_90a,sm_80"}});
  const Tensor expected =
      Session(product_model(), {{"claim", "all"}}, settings(false, 0)).run({{"x", x()}}).at(0);
  EXPECT_EQ(open().run({{"x", x()}}).at(0).bytes, expected.bytes);
}

TEST_P(ContextSession, OfAnotherGpuIsCompiledAgain) {
  write({{"target_arch", "sm_80"}});
  take_log();
  const Session opened = open();
  const Tensor expected =
      Session(product_model(), {{"claim", "all"}}, settings(false, 0)).run({{"x", x()}}).at(0);
  const Tensor found = opened.run({{"x", x()}}).at(0);
  for (int64_t i = 0; i < expected.elements(); ++i) {
    ASSERT_NEAR(found.at(static_cast<size_t>(i)), expected.at(static_cast<size_t>(i)), 1e-5);
  }
  EXPECT_THAT(opened_partition().at("context").at("recompiled").get<std::string>(),
              HasSubstr("sm_80"));
  EXPECT_THAT(take_log(), Contains(HasSubstr("compiled for sm_80, this GPU is sm_90a")));
}

TEST_P(ContextSession, OfAGpuDoesNotOpenOnTheCpu) {
  write();
  take_log();
  EXPECT_THAT(error_of([&] { open(-1); }), HasSubstr("not supported by execution provider"));
  EXPECT_THAT(take_log(), Contains(HasSubstr("a GPU that is not in this machine")));
}

TEST_P(ContextSession, OfTheCpuDoesNotOpenOnAGpu) {
  write({}, -1);
  take_log();
  EXPECT_THAT(error_of([&] { open(0); }), HasSubstr("not supported by execution provider"));
  EXPECT_THAT(take_log(), Contains(HasSubstr("target_arch=sm_90a")));
}

// Two sessions of one model whose weight is 4 MiB.
TEST_P(ContextSession, SharesWeightsWhereAsked) {
  Graph graph;
  graph.input("x", kFloat, {"M", 1024}).constant("w", random_floats({1024, 1024}, 2));
  graph.node("MatMul", {"x", "w"}, {"h"}).node("Softmax", {"h"}, {"y"});
  const std::string large = model(graph.output("y", kFloat, {"M", 1024}));
  const Tensor input = random_floats({3, 1024}, 3);
  const Tensor expected =
      Session(large, {{"claim", "all"}}, settings(true, 0)).run({{"x", input}}).at(0);
  // How many allocations of the first session the second has not.
  const auto saved = [&](const char* key) {
    Settings given = settings(false, 0);
    if (key != nullptr) given.entries.emplace_back(key, "1");
    const long start = stub_calls("cuMemAlloc_v2");
    const Session first(read_file(path()), {}, given);
    const long middle = stub_calls("cuMemAlloc_v2");
    const Session second(read_file(path()), {}, given);
    const long end = stub_calls("cuMemAlloc_v2");
    EXPECT_EQ(first.run({{"x", input}}).at(0).bytes, expected.bytes);
    EXPECT_EQ(second.run({{"x", input}}).at(0).bytes, expected.bytes);
    return (middle - start) - (end - middle);
  };
  EXPECT_EQ(saved(nullptr), 0);
  EXPECT_EQ(saved("ep.share_ep_contexts"), 1);
  EXPECT_EQ(saved("ep.stop_share_ep_contexts"), 0);  // each is the last of its group
}

// A weight of 4 MiB in a file beside the model.
class WeightlessSession : public ContextSession {
 protected:
  WeightlessSession() {
    Graph graph;
    graph.input("x", kFloat, {"M", 1024}).external("w", weight_, "w.data", 4096);
    graph.node("MatMul", {"x", "w"}, {"h"}).node("Softmax", {"h"}, {"y"});
    model_ = model(graph.output("y", kFloat, {"M", 1024}));
    write_weights(weight_.bytes);
  }
  void write_weights(const std::string& bytes) const {
    std::ofstream(folder_.path("w.data")) << std::string(4096, ' ') << bytes;
  }
  Settings in_folder(bool writes, int gpu = 0) const {
    Settings made = settings(writes, gpu);
    made.entries.emplace_back("session.model_external_initializers_file_folder_path",
                              folder_.path());
    return made;
  }
  Session write_without_weights(const Options& options = {}) const {
    Settings given = in_folder(true);
    given.entries.emplace_back("ep.enable_weightless_ep_context_nodes", "1");
    Options all = options;
    all["claim"] = "all";
    return Session(model_, all, given);
  }
  Tensor run(const Session& session) const { return session.run({{"x", input_}}).at(0); }
  Session open_context(const Settings& given) const {
    return Session(read_file(path()), {{"report_file", folder_.path("report.json")}}, given);
  }

  const Tensor weight_ = random_floats({1024, 1024}, 2), input_ = random_floats({3, 1024}, 3);
  std::string model_;
};

INSTANTIATE_TEST_SUITE_P(Forms, WeightlessSession, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Embedded" : "Beside"; });

TEST_P(WeightlessSession, GivesTheSameBitsOnAGpu) {
  const Tensor expected = run(write_without_weights());
  const std::string context = read_file(GetParam() ? path() : data());
  EXPECT_LT(context.size(), weight_.bytes.size() / 4);
  const Session opened = open_context(in_folder(false));
  EXPECT_EQ(run(opened).bytes, expected.bytes);
  EXPECT_EQ(opened_partition().at("context").at("weight_files"), Json({"w.data"}));
  EXPECT_EQ(stub_reports(), "");
}

TEST_P(WeightlessSession, FindsTheWeightsBesideThePathThatItWouldHave) {
  const Tensor expected = run(write_without_weights());
  EXPECT_EQ(run(open_context(settings(false, 0))).bytes, expected.bytes);
}

TEST_P(WeightlessSession, SharesPackedWeightsWhereAsked) {
  const Tensor expected = run(write_without_weights());
  Settings given = in_folder(false);
  given.entries.emplace_back("ep.share_ep_contexts", "1");
  const long start = stub_calls("cuMemAlloc_v2");
  const Session first = open_context(given);
  const long middle = stub_calls("cuMemAlloc_v2");
  const Session second = open_context(given);
  const long end = stub_calls("cuMemAlloc_v2");
  EXPECT_LT(end - middle, middle - start);
  EXPECT_EQ(run(first).bytes, expected.bytes);
  EXPECT_EQ(run(second).bytes, expected.bytes);
}

TEST_P(WeightlessSession, ChecksTheFileAlsoWhereWeightsAreShared) {
  write_without_weights();
  Settings given = in_folder(false);
  given.entries.emplace_back("ep.share_ep_contexts", "1");
  const Session first = open_context(given);
  std::string changed = weight_.bytes;
  changed[changed.size() / 2] ^= 1;
  write_weights(changed);
  EXPECT_THAT(error_of([&] { open_context(given); }), HasSubstr("weight file 'w.data'"));
}

TEST_P(WeightlessSession, AnotherGpuPacksAsTheFirstWouldHave) {
  write_without_weights({{"target_arch", "sm_80"}});
  const Session opened = open_context(in_folder(false));
  const Tensor expected = run(Session(model_, {{"claim", "all"}}, in_folder(false)));
  const Tensor found = run(opened);
  for (int64_t i = 0; i < expected.elements(); ++i) {
    ASSERT_NEAR(found.at(static_cast<size_t>(i)), expected.at(static_cast<size_t>(i)), 1e-5);
  }
}

// As the compile API does it: nothing reaches the device.
TEST_P(ContextSession, ThatIsOnlyCompiledTouchesNoDevice) {
  Settings only = settings(true, 0);
  only.entries.emplace_back("session.compile_only", "1");
  const long modules = stub_calls("cuModuleLoadDataEx"), memory = stub_calls("cuMemAlloc_v2");
  const Session session(product_model(), {{"claim", "all"}}, only);
  EXPECT_EQ(stub_calls("cuModuleLoadDataEx"), modules);
  EXPECT_EQ(stub_calls("cuMemAlloc_v2"), memory);
  // Newer runtimes refuse by themselves.
  EXPECT_THAT(error_of([&] {
                session.run({{"x", x()}});
              }),
              AnyOf(HasSubstr("open the context model"), HasSubstr("not initialized")));
  EXPECT_EQ(open().run({{"x", x()}}).at(0).dims.at(0), 7);
  EXPECT_GT(stub_calls("cuModuleLoadDataEx"), modules);
}

// The runtime asks before it opens anything.
TEST_P(ContextSession, OfAnotherFormIsRefused) {
  write();
  std::string changed = read_file(path());
  const size_t at = changed.find("tenon-context-2");
  ASSERT_NE(at, changed.npos);
  changed[at + 14] = '9';
  std::ofstream(path()) << changed;
  take_log();
  EXPECT_THAT(error_of([&] { open(); }), HasSubstr("not supported by execution provider"));
  EXPECT_THAT(take_log(), Contains(HasSubstr("another version of Tenon wrote it")));
}

TEST_P(ContextSession, WritesNothingWhereNobodyAsked) {
  const Session plain(product_model(), {{"claim", "all"}}, settings(false, 0));
  EXPECT_FALSE(fs::exists(path()));
  EXPECT_THAT(error_of([&] {
                Session(product_model(), {{"target_arch", "sm_90a,sm_80"}}, settings(false, 0));
              }),
              HasSubstr("a session compiles for one"));
}

}  // namespace
}  // namespace tenon::testing
