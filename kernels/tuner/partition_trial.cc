#include "kernels/tuner/partition_trial.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/stopwatch.h"
#include "graph_partitioner/ir/fusions.h"
#include "kernels/build_program.h"
#include "kernels/tuner/median.h"
#include "kernels/tuner/trial_weights.h"

namespace tenon::kernels {
namespace {

constexpr double kGainsByRival = 0.998;  // times the other: worth another plan
constexpr double kGainsInAll = 0.995;    // times what runs untuned: worth what was decided
constexpr double kSeconds = 60;          // after which contests stay as they are
constexpr double kMicrosecondsOfRound = 2000;

// The whole partition's inputs and outputs at some sizes.
struct PartitionValues {
  std::vector<TrialInput> inputs;
  std::vector<TrialOutput> outputs;
};

class ValueDescriber {
 public:
  ValueDescriber(const ir::Graph& graph, const Sizes& sizes) : graph_(graph), sizes_(sizes) {
    for (const ir::NodeId id : graph.order()) {
      if (!graph.node(id).is(ir::kAttention)) continue;
      const ir::Node& node = graph.node(id);
      const ir::Attention attention = ir::Attention::from(node);
      if (attention.past_k == ir::kNoValue) continue;
      keys_ = sizes.of((*graph.value(attention.past_k).shape)[2]);
      past_of_[node.output(1)] = attention.past_k;
      past_of_[node.output(2)] = attention.past_v;
    }
  }

  PartitionValues describe() const {
    PartitionValues values;
    for (const ir::ValueId id : graph_.inputs()) values.inputs.push_back(input(graph_.value(id)));
    for (const ir::ValueId id : graph_.outputs()) {
      TrialOutput output{graph_.value(id).dtype, dims(graph_.value(id)), std::nullopt};
      const auto past = past_of_.find(id);
      const auto place = past == past_of_.end() ? graph_.inputs().end()
                                                : std::ranges::find(graph_.inputs(), past->second);
      if (place != graph_.inputs().end() && dims(graph_.value(*place)) == output.dims) {
        output.in_place_of = static_cast<size_t>(place - graph_.inputs().begin());
      }
      values.outputs.push_back(std::move(output));
    }
    return values;
  }

 private:
  std::vector<int64_t> dims(const ir::Value& value) const {
    if (!value.shape) throw UserError("'" + value.name + "' has a rank that only a Run tells");
    std::vector<int64_t> numbers;
    for (const Dim& dim : *value.shape) numbers.push_back(sizes_.of(dim));
    return numbers;
  }

  // Small integers are valid as tokens, positions and masks; one for each batch row counts keys.
  TrialInput input(const ir::Value& value) const {
    using Holds = TrialInput::Holds;
    TrialInput input{Holds::kNumbers, value.dtype, dims(value)};
    if (value.elements) {
      input.holds = Holds::kSizes;
      for (const Dim& element : *value.elements) input.sizes.push_back(sizes_.of(element));
      return input;
    }
    if (!is_integer(value.dtype)) return input;
    const Shape& shape = *value.shape;
    const bool counts_keys =
        value.dtype == DType::kI32 && (shape.size() < 2 || (shape.size() == 2 && shape[1].is(1)));
    input.holds = bit_width(value.dtype) > 8 ? Holds::kKeyCounts : Holds::kCodes;
    input.limit = counts_keys ? std::max<int64_t>(keys_ - 1, 0) : 1;
    return input;
  }

  const ir::Graph& graph_;
  const Sizes& sizes_;
  int64_t keys_ = 2;
  std::map<ir::ValueId, ir::ValueId> past_of_;
};

}  // namespace

// The partition by some records.
struct PartitionTrial::Variant {
  std::unique_ptr<Settings> settings;
  std::unique_ptr<Executable> executable;
  std::set<int64_t> captured;  // rows that it has run at

  void run(TrialMemory& caller, const TrialRules& rules) const {
    executable->run(caller);
    caller.own_stream().synchronize(rules.deadline);
  }

  void capture(TrialMemory& caller, int64_t rows, const TrialRules& rules) {
    if (!captured.insert(rows).second) return;
    run(caller, rules);
    run(caller, rules);
    executable->check_finished();
  }
};

PartitionTrial::Variant PartitionTrial::build(const std::vector<Contest>& contests) const {
  std::vector<TuningRecord> records = known_;
  for (const Contest& contest : contests) records.push_back(contest.record);
  Variant variant;
  variant.settings = std::make_unique<Settings>(settings_);
  variant.settings->require_tuned = false;
  variant.settings->records = std::make_shared<const TuningRecords>(records, machine_);
  DeviceRunOptions run;
  run.graphs = true;
  run.streams_last = true;
  run.deadline = options_.rules.deadline;
  run.kernel_cache = settings_.kernel_cache;
  run.weight_pool = weights_;
  Program program = make_program(fused_, *variant.settings);
  name_shared_weights(program);
  variant.executable = run_on_device(std::move(program), *settings_.gpu, device_, run);
  return variant;
}

TrialMemory& PartitionTrial::caller_at(const Contest& at) {
  std::unique_ptr<TrialMemory>& caller = callers_[at.at_rows];
  if (caller == nullptr) {
    const auto sizes = sizes_at(fused_, at.rows, at.at_rows);
    if (!sizes) throw UserError("no sizes of the model come to these rows");
    PartitionValues values = ValueDescriber(fused_, *sizes).describe();
    caller = std::make_unique<TrialMemory>(device_, values.inputs, values.outputs,
                                           std::make_shared<Redzones>(device_));
  }
  return *caller;
}

// How long a Run of `variant` takes, in Runs of `base`.
double PartitionTrial::ratio(Variant& variant, Variant& base, const Contest& at) {
  TrialMemory& caller = caller_at(at);
  for (Variant* each : {&variant, &base}) each->capture(caller, at.at_rows, options_.rules);
  const auto time = [&](Variant& each, int runs) {
    device::Event first(device_, true), last(device_, true);
    caller.own_stream().record(first);
    for (int i = 0; i < runs; ++i) each.executable->run(caller);
    caller.own_stream().record(last);
    caller.own_stream().synchronize(options_.rules.deadline);
    return 1000.0 * device::Event::milliseconds(first, last) / runs;
  };
  time(base, 1);
  time(variant, 1);
  const int runs =
      std::clamp(static_cast<int>(kMicrosecondsOfRound / std::max(time(base, 2), 1.0)), 1, 50);
  std::vector<double> ratios;
  for (int round = 0; round < options_.rules.rounds; ++round) {
    const double own = time(variant, runs);
    ratios.push_back(own / std::max(time(base, runs), 1e-3));
  }
  return median(std::move(ratios));
}

namespace {

void take_rival(Contest& contest, const MeasuredKernel& rival) {
  contest.record.kernel = rival.kernel;
  contest.record.microseconds = rival.microseconds;
  contest.decided_by = "partition";
}

}  // namespace

void PartitionTrial::try_rivals(const std::vector<Contest>& contests, const std::string& fusion,
                                size_t rival, Variant& base, std::vector<Contest>& decided) {
  std::vector<Contest> changed = contests;
  std::vector<size_t> places;
  for (size_t i = 0; i < changed.size(); ++i) {
    if (changed[i].record.fingerprint != fusion || changed[i].rivals.size() <= rival) continue;
    take_rival(changed[i], changed[i].rivals[rival]);
    places.push_back(i);
  }
  if (places.empty()) return;
  Variant variant = build(changed);
  for (const size_t place : places) {
    if (ratio(variant, base, changed[place]) < kGainsByRival) decided[place] = changed[place];
  }
}

// With all that was decided, against what runs untuned: by rows, since ranges of rows are apart.
void PartitionTrial::keep_what_gains(std::vector<Contest>& contests) {
  std::vector<Contest> untuned = contests;
  for (Contest& contest : untuned) {
    if (contest.record.untuned.candidate.empty()) continue;
    take_rival(contest, {contest.record.untuned, contest.record.untuned_microseconds});
  }
  std::set<int64_t> idle;
  {
    Variant with_all = build(contests), without = build(untuned);
    std::set<int64_t> seen;
    for (const Contest& contest : contests) {
      if (contest.is_untuned() || !seen.insert(contest.at_rows).second) continue;
      if (ratio(with_all, without, contest) > kGainsInAll) idle.insert(contest.at_rows);
    }
  }
  for (size_t i = 0; i < contests.size(); ++i) {
    if (idle.contains(contests[i].at_rows) && !contests[i].is_untuned()) contests[i] = untuned[i];
  }
}

std::string PartitionTrial::decide(std::vector<Contest>& contests) {
  const Stopwatch watch;
  std::set<std::string> fusions;
  size_t most_rivals = 0;
  for (const Contest& contest : contests) {
    fusions.insert(contest.record.fingerprint);
    most_rivals = std::max(most_rivals, contest.rivals.size());
  }
  try {
    std::vector<Contest> decided = contests;
    if (most_rivals > 0) {
      Variant base = build(contests);
      for (const std::string& fusion : fusions) {
        for (size_t rival = 0; rival < most_rivals; ++rival) {
          if (watch.milliseconds() > 1000 * kSeconds) break;
          try_rivals(contests, fusion, rival, base, decided);
        }
      }
    }
    contests = std::move(decided);
    keep_what_gains(contests);
  } catch (const device::DeviceLost& lost) {
    throw DeviceStuck(lost.what());
  } catch (const UserError& error) {
    return error.what();
  }
  return watch.milliseconds() > 1000 * kSeconds ? "there was no time for all of them" : "";
}

}  // namespace tenon::kernels
