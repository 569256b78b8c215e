#include "kernels/autotune/tuning_record.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace tenon::kernels {
namespace {

constexpr size_t kFingerprintDigits = 32;

TextMessage message_of(const RecordedKernel& kernel) {
  TextMessage message;
  message.add("candidate", std::string_view(kernel.candidate));
  message.add("skeleton", name(kernel.config.skeleton));
  for (const auto& [knob, value] : kernel.config.knobs) {
    TextMessage pair;
    pair.add("name", name(knob));
    pair.add("value", value);
    message.add("knob", std::move(pair));
  }
  return message;
}

RecordedKernel kernel_from(const TextMessage& message) {
  RecordedKernel kernel;
  kernel.candidate = message.text("candidate");
  if (kernel.candidate.empty()) throw UserError("a kernel has no candidate");
  const std::string skeleton = message.text("skeleton");
  const auto found = find_skeleton(skeleton);
  if (!found) throw UserError(fmt::format("no skeleton is called '{}'", skeleton));
  kernel.config.skeleton = *found;
  for (const TextField& field : message.fields) {
    if (field.name != "knob") continue;
    if (field.kind != TextField::Kind::kMessage) throw UserError("a knob is not a message");
    const std::string called = field.message.text("name");
    const auto knob = find_knob(called);
    if (!knob) throw UserError(fmt::format("no knob is called '{}'", called));
    if (kernel.config.find(*knob)) throw UserError(fmt::format("knob '{}' stands twice", called));
    kernel.config.knobs.emplace_back(*knob, field.message.integer("value"));
  }
  return kernel;
}

int small(const TextMessage& message, std::string_view field) {
  const int64_t value = message.integer(field);
  if (value < 0 || value > INT32_MAX) throw UserError(fmt::format("'{}' is out of range", field));
  return static_cast<int>(value);
}

TuningMachine machine_from(const TextMessage& message, const TextMessage& versions) {
  TuningMachine machine;
  machine.arch = message.text("arch");
  if (machine.arch.empty()) throw UserError("the machine has no arch");
  machine.sm_count = small(message, "sm_count");
  machine.clock_mhz = small(message, "clock_mhz");
  machine.name = message.text("name");
  machine.tenon = versions.text("tenon");
  machine.driver = versions.text("driver");
  machine.library = versions.text("library");
  return machine;
}

RowRange rows_from(const TextMessage& message) {
  RowRange rows{message.integer("first"), message.integer("last")};
  if (rows.last == 0) rows.last = RowRange::kNoLimit;
  if (rows.first < 0 || rows.is_empty()) throw UserError("the range of rows is empty");
  return rows;
}

double microseconds_from(const TextMessage& message, std::string_view field) {
  const double value = message.number(field);
  if (!std::isfinite(value) || value < 0) throw UserError(fmt::format("'{}' is no time", field));
  return value;
}

void require_fingerprint(const std::string& text) {
  const bool is_hex = std::ranges::all_of(
      text, [](unsigned char c) { return std::isdigit(c) != 0 || (c >= 'a' && c <= 'f'); });
  if (text.size() != kFingerprintDigits || !is_hex) {
    throw UserError(
        fmt::format("the fingerprint is not {} hexadecimal digits", kFingerprintDigits));
  }
}

constexpr auto kKnown = std::to_array<std::string_view>({
    "fusion",
    "fingerprint",
    "rows",
    "machine",
    "versions",
    "kernel",
    "microseconds",
    "untuned",
    "untuned_microseconds",
    "date",
});

}  // namespace

std::string TuningMachine::text() const {
  std::string text = arch;
  if (sm_count > 0) {
    text += fmt::format(", {} {}", sm_count, arch.starts_with("sm_") ? "SMs" : "threads");
  }
  if (clock_mhz > 0) text += fmt::format(", {} MHz", clock_mhz);
  return text;
}

std::string RecordedKernel::text() const { return fmt::format("{}: {}", candidate, config.text()); }

std::string TuningRecord::key() const {
  return fmt::format("{}/{:020}/{:020}/{}/{}/{}/{}/{}/{}", fingerprint, rows.first, rows.last,
                     machine.arch, machine.sm_count, machine.clock_mhz, machine.tenon,
                     machine.driver, machine.library);
}

std::string TuningRecord::text() const {
  std::string text = kernel.text();
  if (microseconds > 0) text += fmt::format("; {:.1f} us measured", microseconds);
  if (untuned_microseconds > 0) text += fmt::format(", untuned {:.1f} us", untuned_microseconds);
  return text;
}

TextMessage TuningRecord::to_message() const {
  TextMessage message, range, where, versions;
  range.add("first", rows.first);
  range.add("last", rows.last == RowRange::kNoLimit ? int64_t{0} : rows.last);
  where.add("arch", std::string_view(machine.arch));
  where.add("sm_count", int64_t{machine.sm_count});
  where.add("clock_mhz", int64_t{machine.clock_mhz});
  where.add("name", std::string_view(machine.name));
  versions.add("tenon", std::string_view(machine.tenon));
  versions.add("driver", std::string_view(machine.driver));
  versions.add("library", std::string_view(machine.library));
  message.add("fusion", std::string_view(fusion));
  message.add("fingerprint", std::string_view(fingerprint));
  message.add("rows", std::move(range));
  message.add("machine", std::move(where));
  message.add("versions", std::move(versions));
  message.add("kernel", message_of(kernel));
  message.add("microseconds", microseconds);
  if (!untuned.candidate.empty()) message.add("untuned", message_of(untuned));
  message.add("untuned_microseconds", untuned_microseconds);
  message.add("date", std::string_view(date));
  message.fields.insert(message.fields.end(), unknown.begin(), unknown.end());
  return message;
}

TuningRecord TuningRecord::from_message(const TextMessage& message) {
  TuningRecord record;
  record.fusion = message.text("fusion");
  record.fingerprint = message.text("fingerprint");
  require_fingerprint(record.fingerprint);
  record.rows = rows_from(message.message("rows"));
  record.machine = machine_from(message.message("machine"), message.message("versions"));
  record.kernel = kernel_from(message.message("kernel"));
  record.microseconds = microseconds_from(message, "microseconds");
  if (message.find("untuned") != nullptr) record.untuned = kernel_from(message.message("untuned"));
  record.untuned_microseconds = microseconds_from(message, "untuned_microseconds");
  record.date = message.text("date");
  std::ranges::copy_if(message.fields, std::back_inserter(record.unknown), [](const auto& field) {
    return std::ranges::find(kKnown, field.name) == kKnown.end();
  });
  return record;
}

}  // namespace tenon::kernels
