// Choices by tuning records, on the host and on the stub's GPU: what counts, what is dropped, and
// that results stay what they are.
#include "kernels/tuned_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "kernels/saved_program.h"
#include "tests/kernels/program_samples.h"
#include "tests/kernels/tuning_samples.h"

namespace tenon::kernels {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Sample sample_of(std::string_view name) {
  for (const Sample& sample : samples()) {
    if (sample.name == name) return sample;
  }
  throw InternalError("no such sample");
}

// The only fusion of a sample with something to choose.
struct Tunable {
  Tunable(std::string_view name, const Settings& settings)
      : sample(sample_of(name)),
        graph(fused(sample.graph, settings)),
        fusions(tunable_fusions(graph, settings)) {
    EXPECT_EQ(fusions.size(), 1u);
  }
  const ir::Node& node() const { return graph.node(fusions.at(0).nodes.at(0)); }
  const std::vector<TunableRange>& ranges() const { return fusions.at(0).ranges; }

  Sample sample;
  ir::Graph graph;
  std::vector<TunableFusion> fusions;
};

const TuningNote& note_of(const Choice& choice, const RowRange& rows) {
  for (const TuningNote& note : choice.tuning) {
    if (note.rows == rows) return note;
  }
  throw InternalError("no note of " + rows.text("rows"));
}

// ---- the host: `packed` dequantises in the kernel, `plain` keeps the weight in f32

TEST(TunedChoice, ARecordFlipsTheCandidateOnTheHost) {
  const Settings settings = host_settings();
  const Tunable model("int4", settings);
  const auto untuned = run_host(make_program(model.graph, settings), model.sample);
  EXPECT_EQ(select(model.graph, model.node(), settings).chosen(), "packed");
  const Settings tuned = with_records(settings, last_plans(model.fusions));
  const Choice choice = select(model.graph, model.node(), tuned);
  EXPECT_EQ(choice.chosen(), "plain");
  EXPECT_TRUE(choice.untuned.empty());
  for (const TuningNote& note : choice.tuning) EXPECT_TRUE(note.used) << note.text;
  const auto outputs = run_host(make_program(model.graph, tuned), model.sample);
  ASSERT_EQ(outputs.size(), 1u);
  expect_near(outputs[0].numbers(), untuned[0].numbers(), 1e-5);
}

TEST(TunedChoice, OtherRowsGoByEstimate) {
  const Settings settings = host_settings();
  const Tunable model("int4", settings);
  ASSERT_GE(model.ranges().size(), 2u);
  const TunableRange& first = model.ranges().front();
  const TuningRecord record = record_of(model.fusions[0], first, first.plans.size() - 1);
  const Choice choice = select(model.graph, model.node(), with_records(settings, {record}));
  ASSERT_EQ(choice.parts.size(), 2u) << choice.chosen();
  EXPECT_EQ(choice.parts[0].candidate, "plain");
  EXPECT_EQ(choice.parts[0].rows, first.rows);
  EXPECT_EQ(choice.parts[1].candidate, "packed");
  EXPECT_EQ(choice.untuned.size(), model.ranges().size() - 1);
  EXPECT_EQ(note_of(choice, model.ranges()[1].rows).text, "no record");
  EXPECT_EQ(note_of(choice, model.ranges()[1].rows).ways.size(), model.ranges()[1].plans.size());
}

TEST(TunedChoice, ARecordOfTheUntunedChoiceChangesNothing) {
  const Settings settings = host_settings();
  const Tunable model("int4", settings);
  std::vector<TuningRecord> records;
  for (const TunableRange& range : model.ranges()) {
    records.push_back(record_of(model.fusions[0], range, range.untuned));
  }
  const Settings tuned = with_records(settings, records);
  EXPECT_EQ(select(model.graph, model.node(), tuned).chosen(), "packed");
  expect_same_bits(run_host(make_program(model.graph, tuned), model.sample),
                   run_host(make_program(model.graph, settings), model.sample));
}

TEST(TunedChoice, WhatACandidateDoesNotOfferIsDroppedWithAReason) {
  const Settings settings = host_settings();
  const Tunable model("int4", settings);
  const TunableRange& range = model.ranges().front();
  const TuningRecord good = record_of(model.fusions[0], range, range.plans.size() - 1);
  const auto reason = [&](auto change) {
    TuningRecord bad = good;
    change(bad);
    const Choice choice = select(model.graph, model.node(), with_records(settings, {bad}));
    EXPECT_EQ(choice.chosen(), "packed");
    EXPECT_FALSE(choice.untuned.empty());
    const TuningNote& note = note_of(choice, bad.rows);
    EXPECT_FALSE(note.used);
    return note.text;
  };
  EXPECT_THAT(reason([](auto& r) {
                r.kernel.config.knobs = {{Knob::kTileM, 12345}};
              }),
              HasSubstr("plain does not offer 'tile 12345' for"));
  EXPECT_EQ(reason([](auto& r) { r.kernel.candidate = "cudnn"; }), "there is no candidate 'cudnn'");
  EXPECT_THAT(reason([](auto& r) { r.kernel.candidate = "int8"; }), HasSubstr("int8: int8"));
  EXPECT_THAT(reason([](auto& r) { r.machine.arch = "sm_80"; }),
              HasSubstr("measured on sm_80, 2 SMs, and this is test"));
  EXPECT_THAT(reason([](auto& r) { r.machine.sm_count = 3; }), HasSubstr("3 threads"));
  EXPECT_EQ(reason([](auto& r) { r.machine.tenon = "9.9"; }),
            "measured with Tenon 9.9, and this is 0.1.0");
  EXPECT_EQ(reason([](auto& r) { r.machine.library = "cuDNN 9.7"; }),
            "measured with cuDNN 9.7, which is not here");
}

TEST(TunedChoice, OfRecordsThatOverlapTheNewestCounts) {
  const Settings settings = host_settings();
  const Tunable model("int4", settings);
  const TunableRange& range = model.ranges().at(1);
  TuningRecord older = record_of(model.fusions[0], range, range.untuned);
  TuningRecord newer = record_of(model.fusions[0], range, range.plans.size() - 1);
  older.rows = {range.rows.first + 3, range.rows.first + 3};
  newer.date = "2027-01-01T00:00:00Z";
  const Choice choice = select(model.graph, model.node(), with_records(settings, {older, newer}));
  EXPECT_EQ(choice.parts.at(1).candidate, "plain");
  EXPECT_EQ(note_of(choice, older.rows).text, "a newer record has some of its rows");
}

TEST(TunedChoice, RequireTunedNamesFusionAndRows) {
  Settings settings = host_settings();
  const Tunable model("int4", settings);
  const std::vector<TuningRecord> all = last_plans(model.fusions);
  settings.require_tuned = true;
  EXPECT_NO_THROW(make_program(model.graph, with_records(settings, all)));
  const std::string error = error_of([&] {
    make_program(model.graph, with_records(settings, {all.begin(), all.end() - 1}));
  });
  EXPECT_THAT(error, HasSubstr("require_tuned=1: node "));
  EXPECT_THAT(error, HasSubstr(all.back().rows.text("rows")));
  EXPECT_THAT(error, HasSubstr("tenon::ScaledDot(f32[*,128]"));
}

// Fusions that run in one way need no record.
TEST(TunedChoice, RequireTunedAsksNothingOfALoop) {
  Settings settings = with_records(host_settings(), {});
  settings.require_tuned = true;
  const ir::Graph graph = fused(sample_of("loop").graph, settings);
  EXPECT_NO_THROW(make_program(graph, settings));
}

// ---- contexts

TEST(TunedChoice, RecordsTravelInContextsAndCountThere) {
  const Settings settings = host_settings();
  const Tunable model("int4", settings);
  const Settings tuned = with_records(settings, last_plans(model.fusions));
  const auto writer = ContextWriter::to_memory();
  save_program(make_program(model.graph, tuned), "part/0", tuned, *writer);
  writer->finish();
  const std::string bytes = writer->take();
  EXPECT_THAT(bytes, HasSubstr("candidate: \"plain\""));
  Settings required = settings;
  required.require_tuned = true;  // of what this session chooses: nothing
  OpenedProgram opened = open_program(ContextFile::from_bytes(bytes), "part/0", required);
  EXPECT_EQ(opened.program.fusions.at(0).chosen, "plain");
  ASSERT_EQ(opened.program.fusions.at(0).tuning.size(), model.ranges().size());
  EXPECT_TRUE(opened.program.fusions.at(0).tuning[0].used);
  expect_same_bits(run_host(std::move(opened.program), model.sample),
                   run_host(make_program(model.graph, tuned), model.sample));
}

// ---- a GPU

class TunedChoiceOnStub : public StubGpuTest {};

TEST_F(TunedChoiceOnStub, ARecordChoosesTheConfigOfAProduct) {
  const Tunable model("nvfp4", settings_);
  const Choice untuned = select(model.graph, model.node(), settings_);
  ASSERT_EQ(untuned.chosen(), "pipelined");
  std::vector<TuningRecord> records;
  for (const TunableRange& range : model.ranges()) {
    ASSERT_EQ(range.plans[range.untuned].kernel.candidate, "pipelined");
    const size_t other = range.untuned == 0 ? 1 : 0;
    ASSERT_EQ(range.plans[other].kernel.candidate, "pipelined");
    records.push_back(record_of(model.fusions[0], range, other));
  }
  const Settings tuned = with_records(settings_, records);
  const Choice choice = select(model.graph, model.node(), tuned);
  EXPECT_EQ(choice.chosen(), "pipelined");
  ASSERT_EQ(choice.parts.size(), 1u);
  for (const RangePlan& range : choice.parts[0].plan.ranges) {
    const auto record = std::ranges::find(records, range.rows, &TuningRecord::rows);
    ASSERT_NE(record, records.end());
    EXPECT_EQ(range.kernels.front().config, record->kernel.config);
  }
  // Every range was lowered as recorded: the report tells the same configs.
  Program program = make_program(model.graph, tuned);
  std::set<std::string> chosen;
  for (const ConfigChoice& config : program.fusions.at(0).configs) {
    chosen.insert(config.chosen.config.text());
  }
  for (const TuningRecord& record : records) {
    EXPECT_TRUE(chosen.contains(record.kernel.config.text())) << record.kernel.text();
  }
}

TEST_F(TunedChoiceOnStub, ATunedProductGivesTheSameNumbers) {
  const Tunable model("nvfp4", settings_);
  const auto untuned = run(make_program(model.graph, settings_), model.sample);
  std::vector<TuningRecord> records;
  for (const TunableRange& range : model.ranges()) {
    records.push_back(record_of(model.fusions[0], range, 1));
  }
  const auto tuned = run(make_program(model.graph, with_records(settings_, records)), model.sample);
  expect_near(tuned.at(0).numbers(), untuned.at(0).numbers(), 1e-4);
}

// A tuner measured rows from 1 on; a model with fixed rows takes what was measured of open ones.
TEST_F(TunedChoiceOnStub, FixedRowsTakeTheRecordOfTheirRange) {
  const Tunable open("nvfp4", settings_);
  const TunableRange& range = open.ranges().at(0);
  TuningRecord record = record_of(open.fusions[0], range, 1);
  record.rows.first = 1;
  std::string text = sample_of("nvfp4").graph;
  for (size_t at = text.find("[b,"); at != text.npos; at = text.find("[b,")) text[at + 1] = '1';
  const Settings tuned = with_records(settings_, {record});
  const ir::Graph fixed = fused(text, settings_);
  const Choice choice = select(fixed, fixed.node(fixed.order().back()), tuned);
  EXPECT_EQ(choice.fingerprint, record.fingerprint);
  EXPECT_TRUE(note_of(choice, {0, range.rows.last}).used);
  EXPECT_EQ(choice.parts.at(0).plan.ranges.at(0).kernels.front().config, record.kernel.config);
  const Choice open_choice = select(open.graph, open.node(), tuned);
  EXPECT_TRUE(note_of(open_choice, range.rows).used);
}

TEST_F(TunedChoiceOnStub, ARecordChoosesTheConfigOfADecode) {
  const std::string text = R"(graph g {
    input %q: f16[b,8,1,64]
    input %k: f16[b,2,s,64]
    input %v: f16[b,2,s,64]
    %y: f16[b,8,1,64] = tenon::Attention(%q, %k, %v) {q_heads=8, kv_heads=2}
    output %y
  })";
  const ir::Graph graph = ir::parse(text);
  const std::vector<TunableFusion> fusions = tunable_fusions(graph, settings_);
  ASSERT_EQ(fusions.size(), 1u);
  const TunableRange& range = fusions[0].ranges.at(0);
  ASSERT_EQ(range.rows, (RowRange{1, 1}));
  const size_t other = range.untuned == 0 ? 1 : 0;
  ASSERT_EQ(range.plans[other].kernel.config.skeleton, Skeleton::kFlashDecode);
  const Settings tuned = with_records(settings_, {record_of(fusions[0], range, other)});
  const ir::Node& node = graph.node(graph.order().front());
  const Choice choice = select(graph, node, tuned);
  EXPECT_TRUE(note_of(choice, {0, 1}).used);
  EXPECT_EQ(choice.lower().configs.at(0).chosen.config, range.plans[other].kernel.config);
}

}  // namespace
}  // namespace tenon::kernels
