#include "tests/codegen/machine_code.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

namespace tenon::codegen {

namespace {

using Registers = std::set<int>;

struct Instruction {
  std::string text, opcode;
  std::vector<std::string> operands;
  std::string label;  // that it branches to
  bool falls = true;  // the next one may follow
};

struct Listing {
  std::vector<Instruction> code;
  std::map<std::string, size_t> labels;
};

std::vector<std::string> split_operands(const std::string& text) {
  std::vector<std::string> out;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    const size_t first = part.find_first_not_of(' ');
    out.push_back(first == std::string::npos ? "" : part.substr(first));
  }
  return out;
}

Listing parse(std::string_view text) {
  static const std::regex label(R"(^(\.L[^ :]*):)");
  static const std::regex line(
      R"(/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)\s*([^;]*);)");
  static const std::regex target(R"(`\((\.L[^)]*)\))");
  Listing out;
  std::stringstream stream{std::string(text)};
  for (std::string row; std::getline(stream, row);) {
    std::smatch found;
    if (std::regex_search(row, found, label)) out.labels[found.str(1)] = out.code.size();
    if (!std::regex_search(row, found, line)) continue;
    Instruction instruction{found.str(0), found.str(2), split_operands(found.str(3)), "", true};
    const bool is_conditional = found[1].matched;
    std::smatch to;
    const std::string rest = found.str(3);
    if (std::regex_search(rest, to, target)) instruction.label = to.str(1);
    const bool leaves = instruction.opcode.starts_with("EXIT") || instruction.opcode == "BRA" ||
                        instruction.opcode.starts_with("RET");
    if (leaves && !is_conditional) instruction.falls = false;
    out.code.push_back(std::move(instruction));
  }
  return out;
}

int first_register(const std::string& operand) {
  static const std::regex plain(R"(^R([0-9]+)\b)");
  std::smatch found;
  return std::regex_search(operand, found, plain) ? std::stoi(found.str(1)) : -1;
}

Registers range(int first, int count) {
  Registers out;
  for (int i = 0; first >= 0 && i < count; ++i) out.insert(first + i);
  return out;
}

bool is_product(const Instruction& i) { return i.opcode.find("GMMA") != std::string::npos; }

// "HGMMA.64x32x16.F32 R24, R52, gdesc[UR16], R24, gsb0": sums of 64 x 32 in 128 threads.
Registers sums_of(const Instruction& product) {
  static const std::regex shape(R"(64x([0-9]+)x)");
  std::smatch found;
  if (!std::regex_search(product.opcode, found, shape)) return {};
  return range(first_register(product.operands[0]), std::stoi(found.str(1)) / 2);
}

// Four words, or none where the left operand is in shared memory.
Registers words_of(const Instruction& product) {
  return range(first_register(product.operands[1]), 4);
}

int width_of(const std::string& opcode) {
  if (opcode.find(".128") != std::string::npos || opcode.starts_with("HMMA")) return 4;
  if (opcode.starts_with("LDSM") && opcode.find(".4") != std::string::npos) return 4;
  if (opcode.starts_with("LDSM") && opcode.find(".2") != std::string::npos) return 2;
  const bool is_pair =
      opcode.find(".64") != std::string::npos || opcode.find("WIDE") != std::string::npos;
  return is_pair ? 2 : 1;
}

Registers written_by(const Instruction& i) {
  if (is_product(i) || i.operands.empty()) return {};
  for (const char* reader :
       {"BAR", "ST", "RED", "WARPSYNC", "BRA", "EXIT", "MEMBAR", "CCTL", "UTMA"}) {
    if (i.opcode.starts_with(reader)) return {};
  }
  return range(first_register(i.operands[0]), width_of(i.opcode));
}

Registers read_by(const Instruction& i) {
  static const std::regex any(R"(\bR([0-9]+)\b)");
  Registers out;
  const bool first_is_read = written_by(i).empty();
  for (size_t n = first_is_read ? 0 : 1; n < i.operands.size(); ++n) {
    const std::string& text = i.operands[n];
    for (std::sregex_iterator found(text.begin(), text.end(), any), end; found != end; ++found) {
      out.insert(std::stoi(found->str(1)));
    }
  }
  return out;
}

bool meet(const Registers& a, const Registers& b) {
  return std::ranges::any_of(a, [&](int r) { return b.contains(r); });
}

struct Group {
  Registers words, sums;
  bool operator==(const Group&) const = default;
  void add(const Group& other) {
    words.insert(other.words.begin(), other.words.end());
    sums.insert(other.sums.begin(), other.sums.end());
  }
};

// Newest first; what is not committed yet is the first of them.
struct InFlight {
  std::vector<Group> groups;
  Group open;
  bool operator==(const InFlight&) const = default;

  void merge(const InFlight& other) {
    groups.resize(std::max(groups.size(), other.groups.size()));
    for (size_t i = 0; i < other.groups.size(); ++i) groups[i].add(other.groups[i]);
    open.add(other.open);
  }
  Group all() const {
    Group out = open;
    for (const Group& group : groups) out.add(group);
    return out;
  }
};

void step(const Instruction& i, InFlight& state) {
  constexpr size_t kMost = 16;
  if (is_product(i)) {
    state.open.add({words_of(i), sums_of(i)});
    if (i.text.find("gsb0") == std::string::npos) return;
    state.groups.insert(state.groups.begin(), std::exchange(state.open, {}));
    if (state.groups.size() > kMost) {
      state.groups[kMost - 1].add(state.groups.back());
      state.groups.pop_back();
    }
  } else if (i.opcode.starts_with("WARPGROUP.DEPBAR")) {
    const auto left = static_cast<size_t>(std::stoi(i.operands[1], nullptr, 0));
    if (state.groups.size() > left) state.groups.resize(left);
  }
}

std::vector<size_t> following(const Listing& listing, size_t at) {
  std::vector<size_t> out;
  const Instruction& i = listing.code[at];
  if (i.falls && at + 1 < listing.code.size()) out.push_back(at + 1);
  if (const auto found = listing.labels.find(i.label);
      found != listing.labels.end() && found->second < listing.code.size()) {
    out.push_back(found->second);
  }
  return out;
}

}  // namespace

int products_in(std::string_view listing) {
  return static_cast<int>(std::ranges::count_if(parse(listing).code, is_product));
}

std::vector<std::string> hazards_in(std::string_view text) {
  const Listing listing = parse(text);
  std::vector<InFlight> before(listing.code.size());
  std::vector<bool> seen(listing.code.size());
  std::vector<size_t> work;
  if (!listing.code.empty()) work.push_back(0), seen[0] = true;
  while (!work.empty()) {
    const size_t at = work.back();
    work.pop_back();
    InFlight after = before[at];
    step(listing.code[at], after);
    for (const size_t next : following(listing, at)) {
      InFlight merged = before[next];
      merged.merge(after);
      if (seen[next] && merged == before[next]) continue;
      before[next] = std::move(merged);
      seen[next] = true;
      work.push_back(next);
    }
  }
  std::vector<std::string> out;
  for (size_t at = 0; at < listing.code.size(); ++at) {
    const Instruction& i = listing.code[at];
    if (is_product(i)) continue;
    const Group flying = before[at].all();
    const Registers written = written_by(i);
    if (meet(written, flying.words))
      out.push_back("writes what a product in flight reads: " + i.text);
    if (meet(written, flying.sums) || meet(read_by(i), flying.sums)) {
      out.push_back("touches sums of a product in flight: " + i.text);
    }
  }
  return out;
}

}  // namespace tenon::codegen
