#include "codegen/llvm/products_in_flight.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <llvm/ADT/PostOrderIterator.h>
#include <llvm/IR/CFG.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/Function.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Instructions.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

namespace tenon::codegen {

namespace {

// More groups than any kernel keeps: where a loop never waits, older ones count as one.
constexpr size_t kMostGroups = 16;

using Registers = std::set<const llvm::Value*>;

// At one place of the program, over all ways to it: groups by age, and the one not yet committed.
struct InFlight {
  std::vector<Registers> groups;  // newest first
  Registers open;
  bool operator==(const InFlight&) const = default;

  void merge(const InFlight& other) {
    groups.resize(std::max(groups.size(), other.groups.size()));
    for (size_t i = 0; i < other.groups.size(); ++i) {
      groups[i].insert(other.groups[i].begin(), other.groups[i].end());
    }
    open.insert(other.open.begin(), other.open.end());
  }
  void commit() {
    groups.insert(groups.begin(), std::move(open));
    open.clear();
    if (groups.size() <= kMostGroups) return;
    groups[kMostGroups - 1].insert(groups.back().begin(), groups.back().end());
    groups.pop_back();
  }
  void wait(size_t running) { groups.resize(std::min(groups.size(), running)); }
  bool reads(const llvm::Value* value) const {
    return open.contains(value) || std::ranges::any_of(groups, [&](const Registers& group) {
             return group.contains(value);
           });
  }
};

const llvm::InlineAsm* assembly_of(const llvm::Instruction& instruction) {
  const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
  return call ? llvm::dyn_cast<llvm::InlineAsm>(call->getCalledOperand()) : nullptr;
}

// How many groups a wait leaves running; nothing: it is no wait.
std::optional<size_t> groups_left(const llvm::CallInst& call, std::string_view text) {
  constexpr std::string_view kWait = "wgmma.wait_group.sync.aligned ";
  if (!text.starts_with(kWait)) return std::nullopt;
  std::string_view count = text.substr(kWait.size());
  if (!count.starts_with('$')) return std::stoul(std::string(count));
  return llvm::cast<llvm::ConstantInt>(call.getArgOperand(0))->getZExtValue();
}

// The left operand's words: sums are floats, descriptors 64 bits, and the last is a predicate.
Registers words_read(const llvm::CallInst& call) {
  Registers out;
  for (const llvm::Value* operand : call.args()) {
    if (operand->getType()->isIntegerTy(32) && llvm::isa<llvm::Instruction>(operand)) {
      out.insert(operand);
    }
  }
  return out;
}

using Visit = std::function<void(const llvm::Instruction&, const InFlight&)>;

// Walks a block from the state at its beginning to that at its end. `visit` sees the state before
// each instruction.
InFlight walk(const llvm::BasicBlock& block, InFlight state, const Visit& visit) {
  for (const llvm::Instruction& instruction : block) {
    if (visit) visit(instruction, state);
    const llvm::InlineAsm* assembly = assembly_of(instruction);
    if (!assembly) continue;
    const auto& call = llvm::cast<llvm::CallInst>(instruction);
    const std::string& text = assembly->getAsmString();
    if (text.starts_with("wgmma.mma_async")) {
      const Registers words = words_read(call);
      state.open.insert(words.begin(), words.end());
    } else if (text.starts_with("wgmma.commit_group")) {
      state.commit();
    } else if (auto left = groups_left(call, text)) {
      state.wait(*left);
    }
  }
  return state;
}

bool has_products(const llvm::Function& function) {
  return std::ranges::any_of(function, [](const llvm::BasicBlock& block) {
    return std::ranges::any_of(block, [](const llvm::Instruction& instruction) {
      const llvm::InlineAsm* assembly = assembly_of(instruction);
      return assembly && assembly->getAsmString().starts_with("wgmma.mma_async");
    });
  });
}

// The state at the beginning of every block, and then every instruction once.
void for_each_state(const llvm::Function& function, const Visit& visit) {
  if (!has_products(function)) return;
  std::map<const llvm::BasicBlock*, InFlight> at_begin;
  const llvm::ReversePostOrderTraversal<const llvm::Function*> order(&function);
  for (bool changed = true; changed;) {
    changed = false;
    for (const llvm::BasicBlock* block : order) {
      const InFlight end = walk(*block, at_begin[block], {});
      for (const llvm::BasicBlock* next : llvm::successors(block)) {
        InFlight merged = at_begin[next];
        merged.merge(end);
        if (merged == at_begin[next]) continue;
        at_begin[next] = std::move(merged);
        changed = true;
      }
    }
  }
  for (const llvm::BasicBlock* block : order) walk(*block, at_begin[block], visit);
}

std::string name_of(const llvm::Value& value) {
  std::string text;
  llvm::raw_string_ostream out(text);
  value.printAsOperand(out, /*PrintType=*/false);
  return text;
}

}  // namespace

Support verify_products_in_flight(const llvm::Function& function) {
  Support answer = Support::yes();
  for_each_state(function, [&](const llvm::Instruction& instruction, const InFlight& state) {
    if (!answer || !state.reads(&instruction)) return;
    answer = Support::no(fmt::format(
        "kernel @{}: {} is written while an asynchronous product still reads it: wait for its "
        "group first",
        function.getName().str(), name_of(instruction)));
  });
  return answer;
}

std::string products_in_flight_text(const llvm::Function& function) {
  std::string out;
  for_each_state(function, [&](const llvm::Instruction& instruction, const InFlight& state) {
    const llvm::InlineAsm* assembly = assembly_of(instruction);
    if (!assembly) return;
    const std::string& text = assembly->getAsmString();
    const auto& call = llvm::cast<llvm::CallInst>(instruction);
    if (text.starts_with("wgmma.commit_group")) {
      std::set<std::string> words;
      for (const llvm::Value* word : state.open) words.insert(name_of(*word));
      if (words.empty()) words.insert("shared memory alone");
      out += fmt::format("commit: {} groups in flight before it, it reads {}\n",
                         state.groups.size(), fmt::join(words, " "));
    } else if (auto left = groups_left(call, text)) {
      out += fmt::format("wait: {} of {} groups stay in flight\n", *left, state.groups.size());
    }
  });
  return out;
}

}  // namespace tenon::codegen
