#include "kernels/report_bytes.h"

#include <utility>

namespace tenon::kernels {
namespace {

constexpr Skeleton kLastSkeleton = Skeleton::kLibrary;
constexpr Knob kLastKnob = Knob::kEngineNumber;

void write(const PlannedKernel& kernel, SavedWriter& writer) {
  writer.kind(kernel.config.skeleton);
  writer.list(kernel.config.knobs, [&](const auto& knob) {
    writer.kind(knob.first);
    writer.number(knob.second);
  });
  writer.real(kernel.microseconds);
  writer.dim(kernel.workspace_bytes);
}

PlannedKernel read_planned(SavedReader& reader) {
  PlannedKernel kernel;
  kernel.config.skeleton = reader.kind(kLastSkeleton);
  kernel.config.knobs = reader.list([&] {
    const Knob knob = reader.kind(kLastKnob);
    return std::pair(knob, reader.number());
  });
  kernel.microseconds = reader.real();
  kernel.workspace_bytes = reader.dim();
  return kernel;
}

void write(const ConfigChoice& config, SavedWriter& writer) {
  writer.text(config.problem);
  write(config.chosen, writer);
  writer.list(config.others, [&](const ConfigChoice::Other& other) {
    write(other.kernel, writer);
    writer.text(other.dropped);
  });
}

ConfigChoice read_config(SavedReader& reader) {
  ConfigChoice config;
  config.problem = reader.text();
  config.chosen = read_planned(reader);
  config.others = reader.list([&] {
    ConfigChoice::Other other{read_planned(reader), {}};
    other.dropped = reader.text();
    return other;
  });
  return config;
}

void write(const LaunchReport& launch, SavedWriter& writer) {
  writer.text(launch.kernel);
  writer.text(launch.isa);
  writer.number(launch.tile_rows);
  writer.number(launch.tile_columns);
  writer.number(launch.weight_bytes);
  writer.list(launch.work, [&](const LaunchReport::Work& work) {
    for (const int64_t number : {work.rows, work.tasks, work.flops}) writer.number(number);
    writer.real(work.compute_us);
  });
}

LaunchReport read_launch(SavedReader& reader) {
  LaunchReport launch;
  launch.kernel = reader.text();
  launch.isa = reader.text();
  launch.tile_rows = reader.small();
  launch.tile_columns = reader.small();
  launch.weight_bytes = reader.number();
  launch.work = reader.list([&] {
    LaunchReport::Work work;
    for (int64_t* number : {&work.rows, &work.tasks, &work.flops}) *number = reader.number();
    work.compute_us = reader.real();
    return work;
  });
  return launch;
}

}  // namespace

void write_reports(const std::vector<FusionReport>& fusions, SavedWriter& writer) {
  writer.list(fusions, [&](const FusionReport& fusion) {
    for (const auto* text : {&fusion.name, &fusion.kind, &fusion.problem, &fusion.chosen}) {
      writer.text(*text);
    }
    writer.numbers(fusion.sources);
    writer.list(fusion.verdicts, [&](const Verdict& verdict) {
      writer.text(verdict.candidate);
      writer.flag(verdict.support.ok);
      writer.text(verdict.support.reason);
    });
    writer.real(fusion.microseconds);
    writer.list(fusion.configs, [&](const ConfigChoice& config) { write(config, writer); });
    writer.list(fusion.launches, [&](const LaunchReport& launch) { write(launch, writer); });
    writer.list(fusion.tuning, [&](const TuningNote& note) {
      writer.number(note.rows.first);
      writer.number(note.rows.last);
      writer.flag(note.used);
      writer.text(note.text);
    });
  });
}

std::vector<FusionReport> read_reports(SavedReader& reader, std::set<std::string>& words) {
  return reader.list([&] {
    FusionReport fusion;
    for (auto* text : {&fusion.name, &fusion.kind, &fusion.problem, &fusion.chosen}) {
      *text = reader.text();
    }
    fusion.sources =
        reader.list([&] { return static_cast<int>(reader.number(INT32_MIN, INT32_MAX)); });
    fusion.verdicts = reader.list([&] {
      Verdict verdict{*words.emplace(reader.text()).first, {}};
      verdict.support.ok = reader.flag();
      verdict.support.reason = reader.text();
      return verdict;
    });
    fusion.microseconds = reader.real();
    fusion.configs = reader.list([&] { return read_config(reader); });
    fusion.launches = reader.list([&] { return read_launch(reader); });
    fusion.tuning = reader.list([&] {
      TuningNote note;
      note.rows.first = reader.number();
      note.rows.last = reader.number();
      note.used = reader.flag();
      note.text = reader.text();
      return note;
    });
    return fusion;
  });
}

}  // namespace tenon::kernels
