#include "kernels/tuner/tune_log.h"

#include <array>
#include <cerrno>
#include <ctime>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/replace_file.h"

namespace tenon::kernels {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const RowRange& rows) {
  Json json{{"first", rows.first}};
  if (rows.last != RowRange::kNoLimit) json["last"] = rows.last;
  return json;
}

Json to_json(const TuningMachine& machine) {
  return {{"arch", machine.arch},   {"sm_count", machine.sm_count},
          {"name", machine.name},   {"clock_mhz", machine.clock_mhz},
          {"tenon", machine.tenon}, {"driver", machine.driver}};
}

Json to_json(const MeasuredKernel& measured) {
  Json json{{"candidate", measured.kernel.candidate}, {"config", measured.kernel.config.text()}};
  if (measured.microseconds > 0) json["us"] = measured.microseconds;
  return json;
}

Json head(std::string_view event, const FusionKey& fusion, const RowRange& rows, int64_t at_rows) {
  return {{"event", event},
          {"fusion", fusion.text},
          {"fingerprint", fusion.fingerprint},
          {"rows", to_json(rows)},
          {"at_rows", at_rows}};
}

Json line_of(std::string_view event, const LoggedPlan& logged) {
  const WantedKernel& kernel = logged.plan.kernel;
  Json json = head(event, logged.fusion, logged.rows, logged.at_rows);
  json["candidate"] = kernel.candidate;
  json["skeleton"] = name(kernel.config.skeleton);
  Json& knobs = json["knobs"] = Json::object();
  for (const auto& [knob, value] : kernel.config.knobs) knobs[name(knob)] = value;
  json["config"] = kernel.config.text();
  json["expected_us"] = logged.plan.microseconds;
  if (!logged.plan.problem.empty()) {
    Json& problem = json["problem"] = Json::object();
    for (const auto& [number, value] : logged.plan.problem) problem[number] = value;
  }
  return json;
}

// Keys are put together from what every line of a plan has.
std::string key_of(const Json& line) {
  return fmt::format("{} {} {} {} {}", line.at("fingerprint").get<std::string>(),
                     line.at("rows").dump(), line.at("candidate").get<std::string>(),
                     line.at("skeleton").get<std::string>(), line.at("knobs").dump());
}

// Names of nodes are bytes of a model: what is no UTF-8 is shown as U+FFFD.
std::string text_of(const Json& line) {
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool ends_processes(std::string_view status) {
  return status == name(TrialStatus::kDeadline) || status == name(TrialStatus::kRunFailed);
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

std::string LoggedPlan::key() const { return key_of(line_of("plan", *this)); }

TuneLog::TuneLog(const std::string& path) : path_(path) {
  if (path.empty()) return;
  read(path);
  file_.open(path, std::ios::app);
  if (!file_) {
    throw UserError(
        fmt::format("tune_log: '{}' cannot be written: give a file in a folder that "
                    "exists and that you may write to",
                    path));
  }
}

// A line that was cut off is the end of a process that died in it. What is no file (/dev/stderr)
// has nothing to be read.
void TuneLog::read(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  std::ifstream file(path);
  std::string text;
  while (std::getline(file, text)) {
    const Json line = Json::parse(text, nullptr, false);
    if (line.is_discarded() || !line.is_object()) continue;
    try {
      const std::string event = line.value("event", "");
      if (event == "trying") {
        given_up_[key_of(line)] = "an earlier process ended while it ran";
      } else if (event == "plan") {
        given_up_.erase(key_of(line));
        if (!ends_processes(line.value("status", ""))) continue;
        given_up_[key_of(line)] = "earlier: " + line.value("reason", "");
      }
    } catch (const nlohmann::json::exception&) {  // a line of somebody else's
    }
  }
}

std::string TuneLog::why_not(const LoggedPlan& plan) const {
  const auto found = given_up_.find(plan.key());
  return found == given_up_.end() ? "" : found->second;
}

// A plan that is not in the log would be tried again by the process after one that it killed: no
// plan runs unlogged.
void TuneLog::write(const std::string& line) {
  if (!file_.is_open()) return;
  errno = 0;
  file_ << line << '\n' << std::flush;
  if (!file_) {
    throw UserError(
        fmt::format("tune_log: '{}' cannot be written: {}. Give a file with room for it, or none",
                    path_, because_of_errno()));
  }
}

void TuneLog::begin(const std::string& partition, const TuningMachine& machine, size_t fusions,
                    size_t ranges, size_t plans) {
  write(text_of({{"event", "begin"},
                 {"partition", partition},
                 {"date", utc_now()},
                 {"machine", to_json(machine)},
                 {"fusions", fusions},
                 {"ranges", ranges},
                 {"plans", plans}}));
}

void TuneLog::trying(const LoggedPlan& plan) { write(text_of(line_of("trying", plan))); }

void TuneLog::tried(const LoggedPlan& plan, const TrialFailure& failure, double microseconds) {
  Json line = line_of("plan", plan);
  if (microseconds > 0) line["us"] = microseconds;
  line["status"] = name(failure.status);
  line["reason"] = failure.reason;
  line["untuned"] = plan.is_untuned;
  write(text_of(line));
}

void TuneLog::range(const FusionKey& fusion, RowRange rows, int64_t at_rows,
                    const RangeSummary& summary) {
  Json line = head("range", fusion, rows, at_rows);
  line["chosen"] = to_json(summary.chosen);
  line["untuned"] = to_json(summary.untuned);
  line["decided_by"] = summary.decided_by;
  line["seconds"] = summary.seconds;
  line["done"] = summary.done;
  line["of"] = summary.of;
  write(text_of(line));
}

void TuneLog::note(const std::string& text) { write(text_of({{"event", "note"}, {"text", text}})); }

void TuneLog::end(const std::string& partition, double seconds, size_t records) {
  write(text_of(
      {{"event", "end"}, {"partition", partition}, {"seconds", seconds}, {"records", records}}));
}

}  // namespace tenon::kernels
