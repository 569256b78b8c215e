#include "provider/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/nearest_name.h"

namespace tenon::provider {
namespace {

struct Option {
  std::string_view key;
  std::string_view accepts;                               // as an error message puts it
  std::function<bool(Options&, const std::string&)> set;  // false: not a valid value
  std::function<std::string(const Options&)> get;
  bool secret = false;  // nothing that is written anywhere repeats its value
};

Option choice(std::string_view key, std::string Options::*field, std::string_view accepts) {
  auto set = [=](Options& options, const std::string& value) {
    for (size_t begin = 0; begin <= accepts.size();) {
      const size_t end = std::min(accepts.find(" | ", begin), accepts.size());
      if (accepts.substr(begin, end - begin) == value) return options.*field = value, true;
      begin = end + 3;
    }
    return false;
  };
  return {key, accepts, set, [=](const Options& options) { return options.*field; }};
}

Option text(std::string_view key, std::string Options::*field, std::string_view accepts) {
  auto set = [=](Options& options, const std::string& value) {
    options.*field = value;
    return !value.empty();
  };
  return {key, accepts, set, [=](const Options& options) { return options.*field; }};
}

// Whoever reads reports and messages sees whether it was given.
Option secret(Option option) {
  option.secret = true;
  option.get = [get = std::move(option.get)](const Options& options) -> std::string {
    return get(options).empty() ? "" : "given";
  };
  return option;
}

Option cache_dir() {
  auto set = [](Options& options, const std::string& value) {
    options.cache_dir = value;
    return true;  // empty: off, where a default would be on
  };
  return {"cache_dir", "a folder", set, [](const Options& options) { return options.cache_dir; }};
}

Option flag(std::string_view key, bool Options::*field) {
  auto set = [=](Options& options, const std::string& value) {
    if (value != "0" && value != "1") return false;
    options.*field = value == "1";
    return true;
  };
  return {key, "0 | 1", set, [=](const Options& options) { return options.*field ? "1" : "0"; }};
}

Option list(std::string_view key, std::vector<std::string> Options::*field,
            std::string_view accepts) {
  auto set = [=](Options& options, const std::string& value) {
    (options.*field).clear();
    for (size_t begin = 0; begin < value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      if (end > begin) (options.*field).push_back(value.substr(begin, end - begin));
      begin = end + 1;
    }
    return true;
  };
  auto get = [=](const Options& options) {
    return fmt::format("{}", fmt::join(options.*field, ","));
  };
  return {key, accepts, set, get};
}

// A whole number of the given base, all of the text.
template <typename Number>
bool parse_number(std::string_view text, Number& number, int base = 10) {
  const char* end = text.data() + text.size();
  auto [next, error] = std::from_chars(text.data(), end, number, base);
  return error == std::errc{} && next == end;
}

Option number(std::string_view key, uint64_t Options::*field, std::string_view accepts) {
  auto set = [=](Options& options, const std::string& value) {
    return parse_number(value, options.*field);
  };
  return {key, accepts, set,
          [=](const Options& options) { return std::to_string(options.*field); }};
}

Option device_id() {
  auto set = [](Options& options, const std::string& value) {
    return parse_number(value, options.device_id) && options.device_id >= 0;
  };
  auto get = [](const Options& options) {
    return options.device_id < 0 ? "" : std::to_string(options.device_id);
  };
  return {"device_id", "the number of the device that the session was given, such as 0", set, get};
}

Option tensor_parallel_size() {
  auto set = [](Options& options, const std::string& value) {
    options.tensor_parallel_size = 0;
    return value == "auto" ||
           (parse_number(value, options.tensor_parallel_size) && options.tensor_parallel_size > 0);
  };
  auto get = [](const Options& options) {
    const uint64_t size = options.tensor_parallel_size;
    return size == 0 ? std::string("auto") : std::to_string(size);
  };
  return {"tensor_parallel_size", "a number of ranks | auto: as many as were launched", set, get};
}

Option tensor_parallel_rank() {
  auto set = [](Options& options, const std::string& value) {
    return parse_number(value, options.tensor_parallel_rank) && options.tensor_parallel_rank >= 0;
  };
  auto get = [](const Options& options) {
    const int rank = options.tensor_parallel_rank;
    return rank < 0 ? std::string() : std::to_string(rank);
  };
  return {"tensor_parallel_rank", "a rank, from 0 on", set, get};
}

Option tune_plans() {
  auto set = [](Options& options, const std::string& value) {
    return parse_number(value, options.tune_plans) && options.tune_plans > 0;
  };
  auto get = [](const Options& options) { return std::to_string(options.tune_plans); };
  return {"tune_plans", "a number of configs, from 1 on", set, get};
}

Option user_compute_stream() {
  auto set = [](Options& options, const std::string& value) {
    const bool hex = value.starts_with("0x") || value.starts_with("0X");
    const bool valid = parse_number(std::string_view(value).substr(hex ? 2 : 0),
                                    options.user_compute_stream, hex ? 16 : 10);
    // Zero is what programs write that have none; the legacy default stream must be asked for.
    if (options.user_compute_stream != 0) options.has_user_compute_stream = true;
    return valid;
  };
  auto get = [](const Options& options) { return std::to_string(options.user_compute_stream); };
  return {"user_compute_stream", "a CUstream as a decimal number or as 0x…", set, get};
}

// Alphabetical: the order in error messages and in docs/options.md.
const std::vector<Option>& table() {
  static const auto* const options = new std::vector<Option>{
      cache_dir(),
      number("cache_size_mb", &Options::cache_size_mb, "a number of MiB"),
      choice("claim", &Options::claim, "gainful | all"),
      text("collective_address", &Options::collective_address, "host:port"),
      choice("collective_backend", &Options::collective_backend, "auto | gloo | nccl | shm"),
      number("collective_deadline_ms", &Options::collective_deadline_ms, "milliseconds"),
      flag("collective_overlap", &Options::collective_overlap),
      flag("collective_peer_memory", &Options::collective_peer_memory),
      secret(text("collective_token", &Options::collective_token, "64 hexadecimal digits | none")),
      flag("collective_windows", &Options::collective_windows),
      choice("context_weights", &Options::context_weights, "map | copy"),
      choice("contexts", &Options::contexts, "open | refuse"),
      choice("cuda_graph_scope", &Options::cuda_graph_scope, "partition | session"),
      flag("deterministic", &Options::deterministic),
      device_id(),
      text("dump_dir", &Options::dump_dir, "a folder"),
      flag("enable_cuda_graph", &Options::enable_cuda_graph),
      flag("enable_cudnn", &Options::enable_cudnn),
      list("exclude_nodes", &Options::exclude_nodes, "node names, separated by commas"),
      list("exclude_ops", &Options::exclude_ops, "op types, separated by commas"),
      flag("has_user_compute_stream", &Options::has_user_compute_stream),
      number("memory_limit", &Options::memory_limit, "a number of bytes; 0: no limit"),
      choice("precision_mode", &Options::precision_mode, "exact | int8 | tf32"),
      text("report_file", &Options::report_file, "a file name"),
      flag("require_full_claim", &Options::require_full_claim),
      flag("require_tuned", &Options::require_tuned),
      number("run_deadline_ms", &Options::run_deadline_ms, "milliseconds; 0: none"),
      choice("target", &Options::target, "auto | cpu | gpu"),
      list("target_arch", &Options::target_arch,
           "architectures such as sm_90a, separated by commas"),
      flag("tensor_parallel_plan", &Options::tensor_parallel_plan),
      tensor_parallel_rank(),
      tensor_parallel_size(),
      choice("tune", &Options::tune, "off | cached | on"),
      text("tune_file", &Options::tune_file, "a file name"),
      text("tune_log", &Options::tune_log, "a file name"),
      tune_plans(),
      user_compute_stream(),
  };
  return *options;
}

[[noreturn]] void refuse_key(const std::string& key) {
  std::vector<std::string_view> keys;
  for (const Option& option : table()) keys.push_back(option.key);
  throw UserError(fmt::format("unknown provider option '{}'{}; valid options are: {}", key,
                              did_you_mean(key, keys), fmt::join(keys, ", ")));
}

}  // namespace

Options parse_options(const std::map<std::string, std::string>& entries) {
  Options options;
  for (const auto& [key, value] : entries) {
    const auto option = std::ranges::find(table(), key, &Option::key);
    if (option == table().end()) refuse_key(key);
    if (!option->set(options, value)) {
      const std::string_view shown = option->secret ? "…" : std::string_view(value);
      throw UserError(fmt::format("provider option {}='{}' is not valid; it takes: {}", key, shown,
                                  option->accepts));
    }
  }
  return options;
}

std::vector<std::string> gpu_only(const Options& options) {
  std::vector<std::string> keys;
  const std::map<std::string, std::string> given = effective(options), usual = effective({});
  for (const char* key :
       {"cache_dir", "cache_size_mb", "collective_overlap", "collective_peer_memory",
        "collective_windows", "cuda_graph_scope", "device_id", "enable_cuda_graph", "enable_cudnn",
        "has_user_compute_stream", "memory_limit", "run_deadline_ms", "user_compute_stream"}) {
    if (given.at(key) != usual.at(key)) keys.emplace_back(key);
  }
  if (options.precision_mode == "tf32") keys.emplace_back("precision_mode=tf32");
  return keys;
}

std::vector<std::string> cpu_only(const Options& options) {
  if (options.precision_mode == "int8") return {"precision_mode=int8"};
  return {};
}

std::vector<std::string> secret_options() {
  std::vector<std::string> keys;
  for (const Option& option : table()) {
    if (option.secret) keys.emplace_back(option.key);
  }
  return keys;
}

std::map<std::string, std::string> effective(const Options& options) {
  std::map<std::string, std::string> values;
  for (const Option& option : table()) values[std::string(option.key)] = option.get(options);
  return values;
}

}  // namespace tenon::provider
