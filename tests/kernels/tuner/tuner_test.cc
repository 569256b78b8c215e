// The tuner on the stub driver: what it measures, records and logs, and plans with planted faults.
#include "kernels/tuner/tuner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/cost_factors.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/cost_fit/measured_plan.h"
#include "kernels/selector.h"
#include "kernels/tuner/range_trial.h"
#include "tests/kernels/cost_fit/product_samples.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::kernels {
namespace {

using Json = nlohmann::json;

std::string random_hex(size_t bytes, unsigned seed, unsigned char mask, unsigned char base) {
  std::mt19937 random(seed);
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += fmt::format("{:02x}", (random() & mask) + base);
  return text;
}

// f16 rows by an NVFP4 weight, whose scales are about 1.
ir::Graph product(const std::string& rows) {
  constexpr int64_t kN = 128, kK = 256;
  return ir::parse(fmt::format(
      R"(graph product {{
  input %x: f16[{0},{2}]
  const %w: f4e2m1[{1},{2}] = hex:{3}
  const %scales: f8e4m3fn[{1},{4}] = hex:{5}
  %y: f16[{0},{1}] = tenon::ScaledDot(%x, %w, _, _, %scales) {{b_k_last=1, block_b=16, result="f16"}} name="product"
  output %y
}})",
      rows, kN, kK, random_hex(kN * kK / 2, 1, 0x77, 0), kK / 16,
      random_hex(kN * kK / 16, 2, 0x07, 0x30)));
}

// Says that it hangs: the stream that is waited for next is never done, nor is any, where the whole
// device hangs.
class Hang final : public LibraryCall {
 public:
  std::string name() const override { return "hang"; }
  void enqueue(void*, std::span<void* const>, std::span<const int64_t>) const override {
    is_hung = true;
    stream = nullptr;
  }
  static bool hangs(void* asked) {
    if (!is_hung) return false;
    if (stream == nullptr) stream = asked;
    return whole_device || stream == asked;
  }
  static inline bool is_hung = false, whole_device = false;
  static inline void* stream = nullptr;
};

class TunerTest : public ::testing::Test {
 protected:
  TunerTest() {
    settings_.host = codegen::detect_host();
    settings_.gpu = device_->description().target();
    settings_.gpu->pipelines = true;
    work_.partition = "tenon_0";
    work_.machine = {"sm_90a", 132, 0, "stub", "0.1.0", "", ""};
    work_.options.told = 2;
    work_.options.times_more = 0;
    work_.options.rules = {std::chrono::milliseconds(300), 2, 1};
    std::filesystem::remove(log_path_);
  }
  ~TunerTest() override { std::filesystem::remove(log_path_); }

  std::vector<TuningRecord> tune(const ir::Graph& graph) {
    TuneLog log(log_path_);
    return kernels::tune(graph, settings_, device_, log, work_);
  }

  // Lines of the log with this event.
  std::vector<Json> lines(const std::string& event) const {
    std::ifstream file(log_path_);
    std::vector<Json> found;
    for (std::string line; std::getline(file, line);) {
      if (Json json = Json::parse(line); json.at("event") == event)
        found.push_back(std::move(json));
    }
    return found;
  }
  std::string status_of(const std::string& candidate) const {
    std::set<std::string> seen;
    for (const Json& line : lines("plan")) {
      if (line.at("candidate") == candidate) seen.insert(line.at("status"));
    }
    std::string joined;
    for (const std::string& each : seen) joined += (joined.empty() ? "" : " ") + each;
    return joined;
  }

  // Of the plans of `pipelined` the one that the estimate likes best.
  void plant(std::function<void(Program&)> fault) {
    work_.options.alter = [fault = std::move(fault)](const TunablePlan& plan, Program& program) {
      if (plan.kernel.candidate == "pipelined") fault(program);
    };
  }

  static void add_copy(Program& program, int64_t bytes) {
    CompiledLaunch copy;
    copy.kind = LaunchKind::kCopy;
    copy.copy_bytes = bytes;
    copy.is_buffer = {true, true};
    copy.slots = {program.launches.front().slots.front(), program.output_slots.front()};
    for (size_t i = 0; i < program.slots.size(); ++i) {
      if (program.slots[i].kind == Slot::Kind::kInput) copy.slots[0] = i;
    }
    copy.tasks = 1;
    copy.node = "planted";
    program.dependencies.begin_node();
    program.dependencies.add_call("copy", "planted", copy.slots, {false, true}, true);
    program.launches.push_back(std::move(copy));
  }

  test::StubDriver stub_;
  std::shared_ptr<device::Device> device_ = device::Device::open(0);
  Settings settings_;
  TuningWork work_;
  const std::string log_path_ =
      (std::filesystem::temp_directory_path() /
       fmt::format("tenon_tuner_{}_{}.jsonl", ::getpid(),
                   ::testing::UnitTest::GetInstance()->current_test_info()->name()))
          .string();
};

TEST_F(TunerTest, MeasuresEveryPlanAndRecordsOne) {
  const ir::Graph graph = product("4");
  std::vector<TuningRecord> kept;
  work_.keep = [&](const auto& records) { kept = records; };
  const std::vector<TuningRecord> records = tune(graph);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].rows, (RowRange{4, 4}));
  EXPECT_GT(records[0].microseconds, 0);
  EXPECT_GT(records[0].untuned_microseconds, 0);
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].kernel, records[0].kernel);
  EXPECT_EQ(lines("begin").at(0).at("ranges"), 1);
  EXPECT_EQ(lines("end").at(0).at("records"), 1);
  EXPECT_EQ(lines("range").at(0).at("at_rows"), 4);
  EXPECT_EQ(lines("plan").size(), lines("begin").at(0).at("plans"));
  for (const Json& line : lines("plan")) {
    const std::string status = line.at("status");
    EXPECT_TRUE(status == "ok" || status == "slow") << line.dump();
  }
  Settings tuned = settings_;
  tuned.records = std::make_shared<const TuningRecords>(records, work_.machine);
  tuned.require_tuned = true;
  const Choice choice = select(graph, graph.node(graph.order().front()), tuned);
  ASSERT_TRUE(choice.ok());
  EXPECT_TRUE(choice.untuned.empty());
}

// Two products whose rows the caller brings wait for nothing, and many copies of one do not say how
// fast the two are.
TEST_F(TunerTest, AsManyCopiesOverlapAsInTheModel) {
  settings_.tuning.reads_inputs_before_wait = true;
  ir::Graph graph = product("4");
  ir::Node second = graph.node(graph.order().front());
  ir::Value other = graph.value(second.outputs[0]);
  other.name = "z";
  other.producer = ir::kNoNode;
  second.name = "second";
  second.outputs = {graph.add_value(std::move(other))};
  graph.add_node(second);
  graph.add_output(second.outputs[0]);
  EXPECT_FALSE(tune(graph).empty());
  int counted = 0;
  for (const Json& line : lines("trying")) {
    if (line.at("candidate") != "pipelined") continue;
    EXPECT_EQ(line.at("problem").at("overlaps"), 2);
    ++counted;
  }
  EXPECT_GT(counted, 1);
}

TEST_F(TunerTest, WhatHasARecordIsNotMeasuredAgain) {
  const ir::Graph graph = product("4");
  const std::vector<TuningRecord> records = tune(graph);
  settings_.records = std::make_shared<const TuningRecords>(records, work_.machine);
  EXPECT_TRUE(tune(graph).empty());
  EXPECT_EQ(lines("begin").at(1).at("plans"), 0);
}

TEST_F(TunerTest, OpenRowsAreMeasuredRangeByRange) {
  work_.options.told = 1;
  work_.options.whole_partition = false;
  const std::vector<TuningRecord> records = tune(product("m"));
  EXPECT_GT(records.size(), 5u);
  EXPECT_EQ(records[0].rows.first, 0);
  EXPECT_EQ(lines("range").at(0).at("at_rows"), records[0].rows.last);
  EXPECT_EQ(records.back().rows.last, RowRange::kNoLimit);
  EXPECT_EQ(lines("range").at(records.size() - 1).at("at_rows"), kOpenRows);
}

// The next ones of `pipelined`, whatever was measured.
std::vector<TunablePlan> next_of_pipelined(const ir::Graph& fused, const TunableFusion& fusion,
                                           const TunableRange& range, std::span<const double>,
                                           int64_t, size_t count) {
  const auto like = std::ranges::find(range.plans, std::string("pipelined"),
                                      [](const auto& plan) { return plan.kernel.candidate; });
  std::vector<PlannedKernel> kernels = unlisted_kernels(fused, fusion, range, *like);
  kernels.resize(std::min(kernels.size(), count));
  std::vector<TunablePlan> plans;
  for (const PlannedKernel& kernel : kernels) {
    plans.push_back(plan_of(fused, fusion, *like, kernel));
  }
  return plans;
}

TEST_F(TunerTest, MeasuresMorePlansBesideTheFastest) {
  work_.options.more = 2;
  work_.options.times_more = 2;
  work_.options.more_plans = next_of_pipelined;
  const std::vector<TuningRecord> records = tune(product("4"));
  ASSERT_EQ(records.size(), 1u);
  std::set<std::string> different;
  for (const Json& line : lines("plan")) {
    const std::string status = line.at("status");
    EXPECT_TRUE(status == "ok" || status == "slow") << line.dump();
    different.insert(line.at("candidate").dump() + line.at("knobs").dump());
  }
  EXPECT_EQ(different.size(), lines("plan").size());
  const size_t added = different.size() - lines("begin").at(0).at("plans").get<size_t>();
  EXPECT_TRUE(added == 2 || added == 4) << added << ": a second time only where the first gained";
}

// Times of cards whose constants are others: some of what is chosen next is faster there, and the
// rest is cut about as the fastest is. How much that gains is in wrong_costs_test.cc.
TEST_F(TunerTest, MorePlansAreThoseThatTheTimesPromise) {
  settings_.tuning.told = 2;
  const ir::Graph graph = kernels::product(4096, 4096);
  size_t chosen = 0, faster = 0;
  for (const TunableFusion& fusion : tunable_fusions(graph, settings_)) {
    for (const TunableRange& range : fusion.ranges) {
      for (uint64_t card = 1; card <= 5; ++card) {
        const codegen::GpuCosts costs =
            codegen::with_factors(codegen::costs_of(*settings_.gpu), card);
        const auto time = [&](const TunablePlan& plan) {
          MeasuredPlan described;
          const bool is_known = plan.kernel.candidate == "pipelined" &&
                                describe_plan(plan.kernel.config, plan.problem, 0, described);
          return is_known ? described.estimate(costs) : 0;
        };
        std::vector<double> times;
        double fastest = std::numeric_limits<double>::max();
        for (const TunablePlan& plan : range.plans) {
          times.push_back(time(plan));
          if (times.back() > 0) fastest = std::min(fastest, times.back());
        }
        const std::vector<TunablePlan> more = more_plans(graph, fusion, range, times, 0, 4);
        EXPECT_LE(more.size(), 4u);
        for (const TunablePlan& plan : more) {
          EXPECT_EQ(
              std::ranges::count(range.plans, plan.kernel.config,
                                 [](const TunablePlan& listed) { return listed.kernel.config; }),
              0);
          ++chosen;
          faster += time(plan) < fastest ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(chosen, 40u);
  EXPECT_GT(faster, 10u);
}

TEST_F(TunerTest, AWrongResultIsNeverRecorded) {
  plant([](Program& program) { add_copy(program, 64); });
  const std::vector<TuningRecord> records = tune(product("4"));
  EXPECT_EQ(status_of("pipelined"), "wrong_result");
  for (const TuningRecord& record : records) EXPECT_NE(record.kernel.candidate, "pipelined");
}

TEST_F(TunerTest, OutputsThatNobodyWroteAreWrong) {
  plant([](Program& program) {
    for (CompiledLaunch& launch : program.launches) launch.tasks = 0;
  });
  tune(product("4"));
  EXPECT_EQ(status_of("pipelined"), "wrong_result");
}

// Writes a few bytes so far behind where its buffer begins.
class WritesBehind final : public LibraryCall {
 public:
  explicit WritesBehind(int64_t bytes) : bytes_(bytes) {}
  std::string name() const override { return "writes_behind"; }
  void enqueue(void*, std::span<void* const> buffers, std::span<const int64_t>) const override {
    std::memset(static_cast<std::byte*>(buffers.front()) + bytes_, 0, 6);
  }

 private:
  int64_t bytes_;
};

// A library's call that begins `bytes` behind where `slot` does.
CompiledLaunch write_behind(Program& program, size_t slot, int64_t bytes) {
  CompiledLaunch call;
  call.kind = LaunchKind::kLibraryCall;
  call.call = std::make_shared<WritesBehind>(bytes);
  call.is_buffer = {true};
  call.slots = {slot};
  call.tasks = 1;
  call.node = "planted";
  program.dependencies.begin_node();
  program.dependencies.add_call("call", "planted", call.slots, {true}, true);
  return call;
}

TEST_F(TunerTest, AWriteBehindAnOutputIsOutOfBounds) {
  plant([](Program& program) {
    program.launches.push_back(write_behind(program, program.output_slots.front(), 4 * 128 * 2));
  });
  tune(product("4"));
  EXPECT_EQ(status_of("pipelined"), "out_of_bounds");
  EXPECT_NE(lines("plan").at(0).at("reason").get<std::string>().find("behind output 0"),
            std::string::npos)
      << lines("plan").at(0).dump();
}

TEST_F(TunerTest, AWriteBehindAWeightIsOutOfBoundsAndBlamesNobodyElse) {
  std::atomic<bool> is_planted = false;  // plans are compiled side by side
  plant([&](Program& program) {
    if (is_planted.exchange(true)) return;
    size_t last = program.slots.size() - 1;
    while (program.slots[last].kind != Slot::Kind::kConstant) --last;
    // Where constants lie side by side each takes whole 256 bytes.
    const int64_t bytes = (program.slots[last].bytes.value() + 255) & ~255;
    program.launches.push_back(write_behind(program, last, bytes));
  });
  const std::vector<TuningRecord> records = tune(product("4"));
  std::map<std::string, int> statuses;
  for (const Json& line : lines("plan")) {
    if (++statuses[line.at("status")]; line.at("status") != "out_of_bounds") continue;
    EXPECT_NE(line.at("reason").get<std::string>().find("weight"), std::string::npos) << line;
  }
  EXPECT_EQ(statuses["out_of_bounds"], 1);
  EXPECT_EQ(statuses["wrong_result"], 0);
  EXPECT_GT(statuses["ok"] + statuses["slow"], 1);
  EXPECT_EQ(records.size(), 1u);
}

TEST_F(TunerTest, APlanThatDoesNotCompileLeavesTheOthers) {
  plant([](Program&) { throw UserError("planted"); });
  const std::vector<TuningRecord> records = tune(product("4"));
  EXPECT_EQ(status_of("pipelined"), "compile_failed");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_NE(records[0].kernel.candidate, "pipelined");
}

// A step behind a cache whose size the caller brings, and rows for it that another input tells.
ir::Graph step_behind_a_cache() {
  return ir::parse(R"ir(graph step {
  input %q: f16[batch,seq,2,64]
  input %k: f16[batch,seq,1,64]
  input %v: f16[batch,seq,1,64]
  input %past_k: f16[batch,1,past,64]
  input %past_v: f16[batch,1,past,64]
  input %lengths: i32[batch]
  input %mask: i64[batch,total]
  %y: f16[batch,seq,128], %k_out: f16[batch,1,max(past,total),64], %v_out: f16[batch,1,max(past,total),64] = tenon::Attention(%q, %k, %v, _, %past_k, %past_v, %lengths) {causal_top_left=1, k_layout="bshd", kv_heads=1, least_length=1, q_heads=2, q_layout="bshd", scale=0.125, v_layout="bshd", y_layout="bs(hd)"} name="step"
  output %y
  output %k_out
  output %v_out
})ir");
}

// Configs may depend on what is known of the sizes: a trial must know no more than the model.
TEST_F(TunerTest, EveryPlanIsOfferedOutsideOfItsModel) {
  settings_.tuning.told = 8;
  size_t flash_decode = 0;
  for (const ir::Graph& graph : {step_behind_a_cache(), product("m")}) {
    for (const TunableFusion& fusion : tunable_fusions(graph, settings_)) {
      for (const TunableRange& range : fusion.ranges) {
        RangeTrial trial(graph, fusion, range, device_, work_.options);
        for (size_t plan = 0; plan < range.plans.size(); ++plan) {
          trial.compile(plan);
          const TrialFailure& failure = trial.results()[plan].failure;
          EXPECT_NE(failure.status, TrialStatus::kNotOffered) << failure.reason;
          EXPECT_NE(failure.status, TrialStatus::kCompileFailed) << failure.reason;
          flash_decode += range.plans[plan].kernel.candidate == "flash_decode" ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(flash_decode, 4u);
}

// What runs untuned is what a choice must beat.
TEST_F(TunerTest, NothingIsRecordedWhereTheUntunedPlanIsNotOffered) {
  const ir::Graph graph = product("4");
  std::vector<TunableFusion> fusions = tunable_fusions(graph, settings_);
  ASSERT_EQ(fusions.size(), 1u);
  TunableRange& range = fusions[0].ranges.at(0);
  ASSERT_FALSE(range.plans[range.untuned].kernel.config.knobs.empty());
  range.plans[range.untuned].kernel.config.knobs.front().second += 1;  // which nobody offers
  RangeTrial trial(graph, fusions[0], range, device_, work_.options);
  for (size_t plan = 0; plan < range.plans.size(); ++plan) trial.compile(plan);
  TuneLog log(log_path_);
  trial.measure(log);
  EXPECT_EQ(trial.results()[range.untuned].failure.status, TrialStatus::kNotOffered);
  EXPECT_NE(trial.objection().find("could not be measured"), std::string::npos)
      << trial.objection();
}

// The stub's streams as a GPU on which a kernel does not end.
class HangingTunerTest : public TunerTest {
 protected:
  HangingTunerTest()
      : driver_(const_cast<device::Driver&>(device_->driver())), stub_query_(driver_.stream_query) {
    query_ = stub_query_;
    driver_.stream_query = [](device::StreamHandle stream) {
      constexpr device::Result kNotReady = 600;
      return Hang::hangs(stream) ? kNotReady : query_(stream);
    };
    plant([](Program& program) {
      for (CompiledLaunch& launch : program.launches) {
        launch.kind = LaunchKind::kLibraryCall;
        launch.call = std::make_shared<Hang>();
      }
    });
  }
  ~HangingTunerTest() override {
    driver_.stream_query = stub_query_;
    Hang::is_hung = false;
    Hang::whole_device = false;
    stub_.take_reports();  // what hangs is left behind
  }
  device::Driver& driver_;
  decltype(device::Driver::stream_query) stub_query_;
  static inline decltype(device::Driver::stream_query) query_ = nullptr;
};

TEST_F(HangingTunerTest, APlanThatHangsIsLeftAndTheOthersGoOn) {
  const std::vector<TuningRecord> records = tune(product("4"));
  EXPECT_EQ(status_of("pipelined"), "deadline");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_NE(records[0].kernel.candidate, "pipelined");
}

// The first of these calls hangs; the others do nothing, so that results stay as they were
// poisoned.
class HangsOnce final : public LibraryCall {
 public:
  std::string name() const override { return "hangs_once"; }
  void enqueue(void* stream, std::span<void* const> buffers,
               std::span<const int64_t> numbers) const override {
    if (!Hang::is_hung) Hang().enqueue(stream, buffers, numbers);
  }
};

// Trusted results outlive what hangs, and the memory that it holds.
TEST_F(HangingTunerTest, BehindAPlanThatHangsOthersAreHeldToTheTrustedOne) {
  const ir::Graph graph = product("4");
  Settings listed = settings_;
  listed.tuning.told = work_.options.told;
  std::set<std::string> first;
  const std::vector<TunableFusion> fusions = tunable_fusions(graph, listed);
  for (const TunablePlan& plan : fusions.at(0).ranges.at(0).plans) {
    first.insert(plan.kernel.candidate + plan.kernel.config.text());
  }
  work_.options.times_more = 1;
  work_.options.more_plans = next_of_pipelined;
  work_.options.alter = [&](const TunablePlan& plan, Program& program) {
    if (first.contains(plan.kernel.candidate + plan.kernel.config.text())) return;
    for (CompiledLaunch& launch : program.launches) {
      launch.kind = LaunchKind::kLibraryCall;
      launch.call = std::make_shared<HangsOnce>();
    }
  };
  const std::vector<TuningRecord> records = tune(graph);
  std::multiset<std::string> added;
  for (const Json& line : lines("plan")) {
    if (line.at("status") != "ok" && line.at("status") != "slow") added.insert(line.at("status"));
  }
  EXPECT_EQ(added.count("deadline"), 1u);
  EXPECT_GE(added.count("wrong_result"), 1u);
  EXPECT_EQ(lines("plan").size(), first.size() + added.size());
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(first.contains(records[0].kernel.candidate + records[0].kernel.config.text()));
}

TEST_F(HangingTunerTest, WhereTheDeviceHangsTheNextProcessLeavesThePlanOut) {
  Hang::whole_device = true;
  const ir::Graph graph = product("4");
  EXPECT_THROW(tune(graph), DeviceStuck);
  const size_t before = lines("trying").size();
  Hang::is_hung = false;
  EXPECT_THROW(tune(graph), DeviceStuck);  // the next of them
  Hang::is_hung = false;
  const std::vector<TuningRecord> records = tune(graph);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_NE(records[0].kernel.candidate, "pipelined");
  EXPECT_GT(lines("trying").size(), before);
}

TEST(TuneLog, APlanThatWasBegunAndNotFinishedIsLeftOut) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("tenon_tune_log_{}.jsonl", ::getpid()))
          .string();
  const FusionKey fusion{"text", "0123"};
  TunablePlan plan;
  plan.kernel = {"pipelined", {1, 8}, {Skeleton::kGemm, {{Knob::kTileM, 128}}}};
  TunablePlan other = plan;
  other.kernel.config.knobs = {{Knob::kTileM, 64}};
  const LoggedPlan logged{fusion, {1, 8}, 8, plan, true}, unharmed{fusion, {1, 8}, 8, other, false};
  {
    TuneLog log(path);
    EXPECT_EQ(log.why_not(logged), "");
    log.trying(unharmed);
    log.tried(unharmed, {}, 3.5);
    log.trying(logged);
  }
  std::ofstream(path, std::ios::app) << "{\"event\": \"pla";  // it died while it wrote
  EXPECT_NE(TuneLog(path).why_not(logged), "");
  EXPECT_EQ(TuneLog(path).why_not(unharmed), "");
  std::filesystem::remove(path);
  EXPECT_THROW(TuneLog("/nowhere/at/all.jsonl"), UserError);
}

// Anything may stand in a file that was given: other programs' lines cost nothing.
TEST(TuneLog, LinesOfOthersAreSkipped) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("tenon_others_{}.jsonl", ::getpid()))
          .string();
  std::ofstream(path) << "{\"event\": 5}\n{\"event\": null}\n[1]\n5\n\"trying\"\n\n\xff\xfe\n"
                      << "{\"event\": \"trying\"}\n{\"event\": \"plan\", \"rows\": 3}\n"
                      << "{\"event\": \"trying\", \"fingerprint\": {}, \"rows\": []}\n"
                      << std::string(300000, '[') << "\n"
                      << std::string(300000, '[') << std::string(300000, ']') << "\n";
  const FusionKey fusion{"text", "0123"};
  TunablePlan plan;
  plan.kernel = {"pipelined", {1, 8}, {Skeleton::kGemm, {{Knob::kTileM, 128}}}};
  const LoggedPlan logged{fusion, {1, 8}, 8, plan, true};
  TuneLog(path).trying(logged);
  EXPECT_NE(TuneLog(path).why_not(logged), "");
  std::filesystem::remove(path);
}

TEST(TuneLog, NamesMayBeAnyBytes) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("tenon_names_{}.jsonl", ::getpid()))
          .string();
  const FusionKey fusion{"node \xff\xc3", "0123"};
  TunablePlan plan;
  plan.kernel = {"pipelined", {1, 8}, {Skeleton::kGemm, {{Knob::kTileM, 128}}}};
  const LoggedPlan logged{fusion, {1, 8}, 8, plan, true};
  {
    TuneLog log(path);
    log.begin("partition \x80", {}, 1, 1, 1);
    log.trying(logged);
    log.note("\xed\xa0\x80");
  }
  EXPECT_NE(TuneLog(path).why_not(logged), "");
  std::filesystem::remove(path);
}

// A plan that kills the process must be in the log before it runs.
TEST(TuneLog, APlanThatCannotBeLoggedDoesNotRun) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  TuneLog log("/dev/full");
  try {
    log.note("text");
    ADD_FAILURE() << "a full disk was not noticed";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("No space left"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tenon::kernels
