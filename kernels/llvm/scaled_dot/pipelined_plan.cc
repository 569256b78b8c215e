#include "kernels/llvm/scaled_dot/pipelined_plan.h"

#include <algorithm>
#include <memory>
#include <span>

#include <fmt/format.h>

#include "codegen/estimate.h"
#include "codegen/gpu_costs.h"
#include "kernels/llvm/scaled_dot/dense_rows.h"
#include "kernels/llvm/scaled_dot/gemm_shortlist.h"
#include "kernels/llvm/scaled_dot/gpu_operands.h"
#include "kernels/llvm/scaled_dot/pipelined_dot.h"
#include "kernels/llvm/scaled_dot/weight_source.h"
#include "kernels/llvm/split_parts.h"
#include "kernels/planning/before_wait.h"
#include "kernels/planning/wanted_config.h"

namespace tenon::kernels {
namespace {

Support supports_operands(const ir::Graph& graph, const ir::Node& node,
                          const DescribedScaledDot& described) {
  if (Support answer = supports_gpu_dot(graph, node, described); !answer) return answer;
  const ScaledDotProblem& problem = described.problem;
  if (!problem.b_constant) return Support::no("the weight is not a constant matrix");
  if (problem.y_type == DType::kI32) return Support::no("int32 output is not supported");
  if (!reads_rows_directly(problem) || problem.dot.a_k_first) {
    return Support::no("activations are transposed, quantised or not f32, f16 or bf16");
  }
  return Support::yes();
}

// Kernels for one range of rows, best first.
struct Bucket {
  RowRange rows;
  std::vector<GemmConfig> configs;
  bool makes_rows = false;  // inside of the kernel: x is computed there, or split into terms
};

// One product, or several of the same rows.
class PipelinedPlan {
 public:
  PipelinedPlan(const ir::Graph& graph, std::vector<ir::Node> dots,
                std::optional<ir::Node> prologue, const Settings& settings)
      : graph_(graph), nodes_(std::move(dots)), settings_(settings) {
    if (prologue) prologue_.emplace(graph, *prologue, settings);
  }

  // Whether there is a plan; makes it.
  Support make() {
    std::vector<DotPart> parts;
    for (const ir::Node& node : nodes_) {
      DescribedScaledDot described = describe_scaled_dot(graph_, node);
      if (Support answer = supports_operands(graph_, node, described); !answer) return answer;
      parts.push_back({node, std::move(described.problem), {}});
    }
    if (!settings_.gpu->pipelines) {
      return Support::no(settings_.gpu->arch + " has no asynchronous copies to shared memory");
    }
    dots_ = plan_sections(graph_, std::move(parts), settings_.precision);
    if (!dots_.support) return dots_.support;
    if (layout().k * bit_width(layout().operand) % 128 != 0) {
      return Support::no("K of the activations is not a multiple of 16 bytes");
    }
    for (const RowRange& rows : row_ranges(all_rows())) {
      Bucket& bucket = buckets_.emplace_back(make_bucket(rows));
      if (is_for_tuner()) {
        put_shortlist_first(bucket.configs, static_cast<size_t>(settings_.tuning.told),
                            codegen::costs_of(*settings_.gpu));
      }
      put_wanted_first(settings_.tuning, rows, all_rows(), bucket.configs,
                       [&](const GemmConfig& config) {
                         return config.planned(layout(), rows_of(bucket)).config;
                       });
    }
    if (std::ranges::any_of(buckets_, [](const Bucket& b) { return b.configs.empty(); })) {
      return Support::no("too little shared memory per CTA");
    }
    return prologue_ ? supports_prologue() : Support::yes();
  }

  std::vector<RangePlan> ranges() const {
    std::vector<RangePlan> ranges;
    for (const Bucket& bucket : buckets_) {
      RangePlan& range = ranges.emplace_back(RangePlan{bucket.rows, {}});
      for (const GemmConfig& config : best_of(bucket)) {
        range.kernels.push_back(config.planned(layout(), rows_of(bucket)));
      }
    }
    return ranges;
  }

  const Dim& all_rows() const { return dots_.first().problem.rows; }

  Lowered lower() const {
    Lowered lowered;
    DotSections dots = dots_;
    const BufferArgument units = pack_sections(graph_, dots, lowered);
    PipelinedDot dot{graph_, dots, units, settings_.gpu->sm_count};
    const int terms = dot.layout.row_terms;
    if (terms > 1) dot.terms = room_for_terms(dot.problem, terms, lowered);
    if (prologue_) dot.prologue = &*prologue_;
    add_row_launches(dot, lowered);
    for (const Bucket& bucket : buckets_) add_bucket(dot, bucket, lowered);
    for (const DotSection& section : dots.sections) {
      for (const DotPart& part : section.parts) replace_weight(part.problem, lowered);
    }
    return lowered;
  }

 private:
  const FragmentLayout& layout() const { return dots_.layout; }

  // Hundreds are ranked, and whoever asks for a plan wants the first ones.
  std::span<const GemmConfig> best_of(const Bucket& bucket) const {
    const auto told = static_cast<size_t>(settings_.tuning.told);
    return std::span(bucket.configs).first(std::min(told, bucket.configs.size()));
  }

  // Who asks for all there is to measure; plans of one of them are made afterwards.
  bool is_for_tuner() const {
    return settings_.tuning.lists_all && settings_.tuning.kernels.empty();
  }

  // The rows that are multiplied are not those of the node before.
  bool makes_rows() const { return prologue_ || layout().row_terms > 1; }

  // Neighbours that read before they wait, too, run beside this one: how many they are with it.
  int overlapping() const {
    if (makes_rows() || !reads_before_wait(graph_, dots_.first().problem.dot.a, settings_)) {
      return 0;
    }
    if (settings_.tuning.neighbours) return kManyLaunches;
    const int64_t launches = count_early_products(graph_, settings_);
    return launches > 1 ? static_cast<int>(std::min<int64_t>(launches, kManyLaunches)) : 0;
  }

  // Rows that are there need not be kept: configs with resident x come last.
  Bucket make_bucket(const RowRange& rows) const {
    const int64_t most = rows.last == RowRange::kNoLimit ? most_ranked_rows() : rows.last;
    std::vector<GemmConfig> resident = rank_resident_configs(layout(), most, *settings_.gpu);
    if (makes_rows() && !resident.empty()) return {rows, std::move(resident), true};
    Bucket bucket{rows, rank_gemm_configs(layout(), most, overlapping(), *settings_.gpu)};
    if (!makes_rows()) {
      bucket.configs.insert(bucket.configs.end(), resident.begin(), resident.end());
    }
    return bucket;
  }

  // Where a prologue gains: some kernel of few rows computes it itself.
  Support supports_prologue() const {
    if (Support answer = prologue_->supports(); !answer) return answer;
    if (buckets_.front().makes_rows) return Support::yes();
    return Support::no(fmt::format(
        "each CTA would recompute the prologue, and {}",
        layout().is_plain()
            ? "unquantised weights have no skinny GEMM"
            : "there are too many rows, or K is too long or not a multiple of a stage"));
  }

  // The buckets whose kernels read rows that were made from memory come last.
  void add_row_launches(const PipelinedDot& dot, Lowered& lowered) const {
    if (!makes_rows()) return;
    const auto first = std::ranges::find(buckets_, false, &Bucket::makes_rows);
    if (first == buckets_.end()) return;
    const Dim wanted = RowRange{first->rows.first}.contains(all_rows());
    if (prologue_) prologue_->add_launches(wanted, lowered);
    const int terms = layout().row_terms;
    if (terms > 1) lowered.launches.push_back(split_rows(dot.problem, terms, dot.terms, wanted));
  }

  Dim rows_of(const Bucket& bucket) const {
    const bool ends = bucket.rows.last != RowRange::kNoLimit;
    return ends ? min(all_rows(), Dim(bucket.rows.last)) : all_rows();
  }

  void add_bucket(const PipelinedDot& dot, const Bucket& bucket, Lowered& lowered) const {
    ConfigChoice choice{bucket.rows.text("rows"), {}, {}};
    std::vector<std::string> dropped(bucket.configs.size());
    const size_t taken = add_fitting(dot, bucket, dropped, lowered);
    choice.chosen = bucket.configs[taken].planned(layout(), rows_of(bucket));
    constexpr size_t kOthers = 2;
    for (size_t i = 0; i < bucket.configs.size() && choice.others.size() < kOthers; ++i) {
      if (i == taken) continue;
      choice.others.push_back(
          {bucket.configs[i].planned(layout(), rows_of(bucket)), std::move(dropped[i])});
    }
    lowered.configs.push_back(std::move(choice));
  }

  // The launch of the first config whose kernel is expected to fit a CTA; returns which that is.
  size_t add_fitting(const PipelinedDot& dot, const Bucket& bucket,
                     std::vector<std::string>& dropped, Lowered& lowered) const {
    const size_t count = bucket.configs.size();
    const size_t wanted = static_cast<size_t>(settings_.tuning.rank) % count;
    for (size_t i = 0; i < count; ++i) {
      const size_t place = (wanted + i) % count;
      const LoweredMark before(lowered);
      Launch launch = emit(dot, bucket, bucket.configs[place], lowered);
      const Support fits = fits_cta(bucket.configs[place], launch);
      if (fits) {
        lowered.launches.push_back(std::move(launch));
        return place;
      }
      dropped[place] = fits.reason;
      before.roll_back(lowered);
    }
    // The assembler has the last word.
    lowered.launches.push_back(emit(dot, bucket, bucket.configs[wanted], lowered));
    return wanted;
  }

  Launch emit(const PipelinedDot& dot, const Bucket& bucket, const GemmConfig& config,
              Lowered& lowered) const {
    Launch launch = dot.emit(config, rows_of(bucket), lowered);
    launch.shared_bytes = config.shared_bytes;
    launch.tasks = launch.tasks * bucket.rows.contains(all_rows());
    return launch;
  }

  // Accumulators of fewer tokens never fill the registers of a thread: looking would take longer
  // than it is worth.
  Support fits_cta(const GemmConfig& config, const Launch& launch) const {
    constexpr int kTileNThatFits = 32;
    if (config.tile_n <= kTileNThatFits) return Support::yes();
    return codegen::estimate_gpu_once(launch.kernel, launch.threads, *settings_.gpu).fits();
  }

  const ir::Graph& graph_;
  const std::vector<ir::Node> nodes_;
  const Settings& settings_;
  std::optional<RowPrologue> prologue_;
  DotSections dots_;
  std::vector<Bucket> buckets_;
};

Planned plan_dots(const ir::Graph& graph, std::vector<ir::Node> dots,
                  std::optional<ir::Node> prologue, const Settings& settings) {
  auto made =
      std::make_shared<PipelinedPlan>(graph, std::move(dots), std::move(prologue), settings);
  if (Support answer = made->make(); !answer) return answer;
  return Plan{made->ranges(), [made] { return made->lower(); }, made->all_rows()};
}

}  // namespace

Planned plan_pipelined(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  return plan_dots(graph, {node}, std::nullopt, settings);
}

Planned plan_merged(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  ir::MergedDots merged = ir::MergedDots::from(node);
  return plan_dots(graph, std::move(merged.dots), std::move(merged.prologue), settings);
}

}  // namespace tenon::kernels
