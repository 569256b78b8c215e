#include "tests/kernels/device/stub/script.h"

#include <fmt/format.h>

#include <sstream>

#include "base/error.h"

namespace tenon::stub {
namespace {

template <typename T>
T next(std::istringstream& words, std::string_view what) {
  T value{};
  if (!(words >> value)) throw UserError(fmt::format("expected {}", what));
  return value;
}

std::pair<int, int> capability(const std::string& text) {
  int major = 0, minor = 0;
  char dot = 0;
  std::istringstream words(text);
  if (!(words >> major >> dot >> minor) || dot != '.') {
    throw UserError(fmt::format("expected major.minor, got '{}'", text));
  }
  return {major, minor};
}

void add_fault(std::istringstream& words, Script& script, bool sticky) {
  const auto function = next<std::string>(words, "a function");
  std::string number = next<std::string>(words, "the number of a call");
  Fault fault;
  fault.sticky = sticky;
  if (number.back() == '+') {
    fault.after = true;
    number.pop_back();
  }
  std::istringstream digits(number);
  fault.first = next<long>(digits, "the number of a call");
  fault.code = next<int>(words, "a CUDA error");
  script.faults.emplace(function, fault);
}

using Command = void (*)(std::istringstream&, Script&);
const std::map<std::string, Command>& commands() {
  static const std::map<std::string, Command> table = {
      {"fail", [](auto& words, Script& script) { add_fault(words, script, false); }},
      {"sticky", [](auto& words, Script& script) { add_fault(words, script, true); }},
      {"free_memory",
       [](auto& words, Script& script) { script.free_memory = next<long long>(words, "bytes"); }},
      {"devices",
       [](auto& words, Script& script) { script.devices = next<int>(words, "a count"); }},
      {"arch",
       [](auto& words, Script& script) {
         script.archs = {capability(next<std::string>(words, "major.minor"))};
         for (std::string text; words >> text;) script.archs.push_back(capability(text));
       }},
      {"driver_version",
       [](auto& words, Script& script) { script.driver_version = next<int>(words, "a version"); }},
      {"hang_stream",
       [](auto& words, Script& script) {
         script.hung_streams.push_back(next<long>(words, "the number of a stream"));
       }},
      {"order",
       [](auto& words, Script& script) { script.order = next<unsigned>(words, "a seed"); }},
      {"lazy", [](auto&, Script& script) { script.lazy = true; }},
      {"drop",
       [](auto& words, Script& script) {
         script.dropped.push_back(next<std::string>(words, "a function"));
       }},
  };
  return table;
}

}  // namespace

void Script::add(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(';'), text.size());
    const std::string line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    std::istringstream words(line);
    std::string name;
    if (!(words >> name)) continue;
    try {
      const auto command = commands().find(name);
      if (command == commands().end()) throw UserError(fmt::format("no command '{}'", name));
      command->second(words, *this);
    } catch (const UserError& error) {
      throw UserError(fmt::format("stub script: {} in '{}'", error.what(), line));
    }
  }
}

}  // namespace tenon::stub
