#include "kernels/device/description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/nearest_name.h"
#include "codegen/arch_spec.h"
#include "kernels/device/specs.h"

namespace tenon::device {
namespace {

constexpr std::string_view kSpace = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

template <typename Number>
void read_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) {
    throw UserError(fmt::format("expected a number that is not negative, got '{}'", text));
  }
}

void read_bool(std::string_view text, bool& value) {
  if (text != "true" && text != "false") {
    throw UserError(fmt::format("expected true or false, got '{}'", text));
  }
  value = text == "true";
}

void read_compute(std::string_view text, Description& description) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) {
    throw UserError(fmt::format("expected major.minor, got '{}'", text));
  }
  read_number(text.substr(0, dot), description.compute_major);
  read_number(text.substr(dot + 1), description.compute_minor);
}

struct Field {
  std::string_view key;
  void (*read)(std::string_view, Description&);
  std::string (*write)(const Description&);  // empty: left out
};

#define TENON_NUMBER_FIELD(member)                                                                 \
  Field {                                                                                          \
#member,                                                                                       \
        [](std::string_view text,                                                                  \
           Description &                                                                           \
               d) { read_number(text, d.member); },                                                \
                                                 [](const Description&                             \
                                                        d) { return fmt::format("{}", d.member); } \
  }
const Field kFields[] = {
    {"name", [](std::string_view text, Description& d) { d.name = text; },
     [](const Description& d) { return d.name; }},
    {"arch", [](std::string_view text, Description& d) { d.arch = text; },
     [](const Description& d) { return d.arch; }},
    {"forward", [](std::string_view text, Description& d) { read_bool(text, d.forward); },
     [](const Description& d) { return std::string(d.forward ? "true" : ""); }},
    {"compute", read_compute,
     [](const Description& d) { return fmt::format("{}.{}", d.compute_major, d.compute_minor); }},
    TENON_NUMBER_FIELD(sm_count),
    TENON_NUMBER_FIELD(memory_bytes),
    TENON_NUMBER_FIELD(l2_bytes),
    TENON_NUMBER_FIELD(shared_bytes),
    TENON_NUMBER_FIELD(memory_gb_s),
    {"clock_mhz", [](std::string_view text, Description& d) { read_number(text, d.clock_mhz); },
     [](const Description& d) {
       return d.clock_mhz == 0 ? std::string() : fmt::format("{}", d.clock_mhz);
     }},
    {"pci_bus_id", [](std::string_view text, Description& d) { d.pci_bus_id = text; },
     [](const Description& d) { return d.pci_bus_id; }},
    {"ordinal", [](std::string_view text, Description& d) { read_number(text, d.ordinal); },
     [](const Description& d) {
       return d.ordinal < 0 ? std::string() : fmt::format("{}", d.ordinal);
     }},
};
#undef TENON_NUMBER_FIELD

void read_line(std::string_view line, Description& description) {
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) throw UserError("expected 'key = value'");
  const std::string_view key = trimmed(line.substr(0, equals));
  const auto field = std::ranges::find(kFields, key, &Field::key);
  if (field == std::end(kFields)) throw UserError(fmt::format("unknown key '{}'", key));
  field->read(trimmed(line.substr(equals + 1)), description);
}

// CUDA's numbers of the attributes that we read.
enum Attribute : int {
  kClockKhz = 13,
  kMultiprocessors = 16,
  kMemoryClockKhz = 36,
  kMemoryBusBits = 37,
  kL2Bytes = 38,
  kComputeMajor = 75,
  kComputeMinor = 76,
  kSharedBytesPerBlock = 97,
};

constexpr int kOldestMajor = 8;

void choose_arch(Description& description) {
  const codegen::ArchSpec& spec =
      codegen::arch_spec_of_device(description.compute_major, description.compute_minor);
  description.arch = spec.name;
  // Plain PTX of an older architecture runs on every later one.
  description.forward = spec.compute_major != description.compute_major ||
                        spec.compute_minor != description.compute_minor;
}

}  // namespace

codegen::GpuTarget Description::target() const {
  codegen::GpuTarget target;
  target.arch = arch;
  target.shared_bytes = shared_bytes;
  target.sm_count = sm_count;
  target.pipelines = true;
  return target;
}

std::string Description::text() const {
  std::string text;
  for (const Field& field : kFields) {
    if (const std::string value = field.write(*this); !value.empty()) {
      text += fmt::format("{} = {}\n", field.key, value);
    }
  }
  return text;
}

Description parse_description(std::string_view text) {
  Description description;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    try {
      read_line(line, description);
    } catch (const UserError& error) {
      throw UserError(
          fmt::format("device description, line {}: {} in '{}'", number, error.what(), line));
    }
  }
  if (description.arch.empty()) {
    throw UserError("device description: 'arch' is missing, for example 'arch = sm_90a'");
  }
  return description;
}

Description named_description(std::string_view arch) {
  std::vector<std::string_view> known;
  for (const Spec& spec : specs()) {
    if (spec.arch == arch) return parse_description(spec.text);
    known.push_back(spec.arch);
  }
  throw UserError(fmt::format("no GPU architecture '{}' is known{}; choose one of {}", arch,
                              did_you_mean(arch, known), fmt::join(known, ", ")));
}

Support describe(const Driver& driver, int number, Description& description) {
  description = {};
  Ordinal device = 0;
  size_t memory = 0;
  char name[256] = {}, bus[32] = {};
  int shared_bytes = 0, l2_bytes = 0, clock_khz = 0, bus_bits = 0;
  const std::pair<Attribute, int*> attributes[] = {
      {kMultiprocessors, &description.sm_count},
      {kComputeMajor, &description.compute_major},
      {kComputeMinor, &description.compute_minor},
      {kSharedBytesPerBlock, &shared_bytes},
      {kL2Bytes, &l2_bytes},
  };
  bool answered = driver.device_get(&device, number) == kSuccess &&
                  driver.device_name(name, sizeof(name) - 1, device) == kSuccess &&
                  driver.device_memory(&memory, device) == kSuccess &&
                  driver.device_pci_bus_id(bus, sizeof(bus) - 1, device) == kSuccess;
  for (const auto& [attribute, value] : attributes) {
    answered = answered && driver.device_attribute(value, attribute, device) == kSuccess;
  }
  if (!answered) {
    return Support::no(fmt::format("GPU {} does not tell what it is; check nvidia-smi", number));
  }
  if (description.compute_major < kOldestMajor) {
    return Support::no(fmt::format(
        "GPU {} ({}) has compute capability {}.{}, and {}.0 (Ampere) or newer is needed", number,
        name, description.compute_major, description.compute_minor, kOldestMajor));
  }
  int sm_clock_khz = 0;
  if (driver.device_attribute(&sm_clock_khz, kClockKhz, device) == kSuccess) {
    description.clock_mhz = std::max(0, sm_clock_khz) / 1000;
  }
  // Only an estimate is lost where a driver no longer tells these two.
  if (driver.device_attribute(&clock_khz, kMemoryClockKhz, device) == kSuccess &&
      driver.device_attribute(&bus_bits, kMemoryBusBits, device) == kSuccess) {
    description.memory_gb_s = 2.0 * clock_khz * (bus_bits / 8) / 1e6;  // double data rate
  }
  description.name = name;
  description.pci_bus_id = bus;
  std::ranges::transform(description.pci_bus_id, description.pci_bus_id.begin(),
                         [](unsigned char letter) { return std::tolower(letter); });
  description.ordinal = number;
  description.memory_bytes = static_cast<int64_t>(memory);
  description.shared_bytes = shared_bytes;
  description.l2_bytes = l2_bytes;
  choose_arch(description);
  return Support::yes();
}

}  // namespace tenon::device
