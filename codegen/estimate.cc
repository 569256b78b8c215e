#include "codegen/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/content_cache.h"
#include "codegen/arch_spec.h"
#include "codegen/llvm/gpu_machine.h"
#include "codegen/moves.h"
#include "codegen/passes/expand_math.h"
#include "codegen/tile/content.h"
#include "codegen/tile/op_info.h"

namespace tenon::codegen {

namespace {

constexpr int kMostRegisters = 255, kMostDealt = 240;
constexpr int kWarpgroup = 128;

// Beside the tiles: addresses, counters, operands of products on their way. From the assembler's
// reports on all kernels of the tests.
constexpr int kBesidesTiles = 32;
// What it takes beyond that where it is there, to read further ahead.
constexpr int kToSpare = 28;

// A value lives in the region that defines it, from there to its last use; uses in inner regions
// count where these stand. Results may take the registers of operands that end with them.
class LiveRegisters {
 public:
  LiveRegisters(const Kernel& kernel, const std::vector<Layout>& layouts, int threads)
      : kernel_(kernel),
        layouts_(layouts),
        threads_(threads),
        definitions_(definitions_of(kernel)),
        users_(kernel.types.size()),
        on_demand_(kernel.types.size()),
        renamed_(kernel.types.size()),
        of_places_(kernel.types.size()),
        in_words_(kernel.types.size()),
        registers_(kernel.types.size()) {
    find_users(kernel.body);
    find_on_demand(kernel.body);
    find_of_places(kernel.body);
    find_in_words(kernel.body);
    for (size_t id = 0; id < kernel.types.size(); ++id) {
      const Operation* op = definitions_[id];
      renamed_[id] = op && !on_demand_[id] && is_renamed(*op);
      registers_[id] = count_registers(static_cast<ValueId>(id));
    }
  }

  int run() { return most_in(kernel_.body); }

 private:
  struct User {
    const Operation* op;
    size_t operand;
  };
  using Positions = std::map<ValueId, size_t>;

  void find_users(const Region& region) {
    for (const Operation& op : region.operations) {
      for (size_t i = 0; i < op.operands.size(); ++i) {
        if (op.operands[i] != kNone) users_[op.operands[i]].push_back({&op, i});
      }
      for (const Region& inner : op.regions) find_users(inner);
    }
  }

  // What products read from stages themselves, or have dequantised for them a step at a time.
  void find_on_demand(const Region& region) {
    for (size_t i = region.operations.size(); i-- > 0;) {
      const Operation& op = region.operations[i];
      for (const Region& inner : op.regions) find_on_demand(inner);
      bool may = is_elementwise(op.op) || is_move(kernel_, op) || is_read(op);
      if (!may || users_[op.results[0]].empty()) continue;
      on_demand_[op.results[0]] = std::ranges::all_of(
          users_[op.results[0]], [&](const User& user) { return is_on_demand(op, user); });
    }
  }

  // What depends on nothing but where an element lies is made where it is used.
  void find_of_places(const Region& region) {
    for (const Operation& op : region.operations) {
      for (const Region& inner : op.regions) find_of_places(inner);
      bool made = op.op == Op::kIota || op.op == Op::kConstant || op.op == Op::kSplat;
      bool follows = is_elementwise(op.op) &&
                     std::ranges::all_of(op.operands, [&](ValueId id) { return of_places_[id]; });
      if (made || follows) of_places_[op.results[0]] = true;
    }
  }

  // Left operands of products that are there before them, also where pipelines carry them along:
  // two elements in a register.
  void find_in_words(const Region& region) {
    for (size_t i = region.operations.size(); i-- > 0;) {
      const Operation& op = region.operations[i];
      for (const Region& inner : op.regions) find_in_words(inner);
      if (ring_dot(kernel_, definitions_, op, threads_)) in_words_[op.operands[1]] = true;
      if (op.op != Op::kPipeline) continue;
      const Region& consume = op.regions[1];
      for (size_t k = 0; k < op.results.size(); ++k) {
        ValueId inside = consume.arguments[2 + k];
        if (!in_words_[inside] && !in_words_[op.results[k]]) continue;
        for (ValueId id :
             {inside, op.results[k], op.operands[2 + k], consume.operations.back().operands[k]}) {
          in_words_[id] = true;
        }
      }
    }
  }

  bool is_on_demand(const Operation& op, const User& user) const {
    if (auto product = ring_dot(kernel_, definitions_, *user.op, threads_)) {
      if (user.operand == 1) return product->left ? product->left == &op : !is_read(op);
      return user.operand == 2 && (product->right || !is_read(op));
    }
    if (user.op->results.size() != 1 || !user.op->regions.empty()) return false;
    return on_demand_[user.op->results[0]] && (!is_read(op) || is_turned(user));
  }
  static bool is_read(const Operation& op) { return op.op == Op::kRead || op.op == Op::kLoad; }
  static bool is_turned(const User& user) {
    return user.op->op == Op::kTranspose || user.op->op == Op::kConcat;
  }

  int count_registers(ValueId id) const {
    const Type& type = kernel_.types[id];
    const Operation* op = definitions_[id];
    if (on_demand_[id] || renamed_[id] || of_places_[id]) return 0;
    if (in_words_[id] && bit_width(type.dtype) == 16) return (layouts_[id].registers() + 1) / 2;
    if (type.kind == Type::Kind::kIndex) return op && op->op == Op::kIndexConstant ? 0 : 2;
    if (type.kind != Type::Kind::kTile) return 0;
    if (op && (op->op == Op::kConstant || op->op == Op::kSplat)) return 0;
    int words = (bit_width(type.dtype) + 31) / 32;
    bool repeats = op && op->op == Op::kRead && !op->integers.empty();
    return words * (repeats ? places_read(*op) : layouts_[id].registers());
  }

  // Registers of an operand under other names.
  bool is_renamed(const Operation& op) const {
    if (!is_move(kernel_, op)) return op.op == Op::kBitcast;
    return registers_of_move(kernel_, op, layouts_).has_value();
  }

  // Elements that a thread reads from a stage; those that strides of 0 repeat are read once.
  int places_read(const Operation& read) const {
    const Layout& layout = layouts_[read.results[0]];
    const std::vector<int>& shape = kernel_.types[read.results[0]].shape;
    std::set<int64_t> places;
    for (int r = 0; r < layout.registers(); ++r) {
      int64_t element = std::max<int64_t>(layout.element_of(0, r), 0), place = 0;
      for (size_t d = shape.size(); d-- > 0; element /= shape[d]) {
        place += element % shape[d] * read.integers[d];
      }
      places.insert(place);
    }
    return static_cast<int>(places.size());
  }

  static void note_uses(const Operation& op, size_t at, Positions& last) {
    for (ValueId id : op.operands) {
      if (id != kNone) last[id] = at;
    }
    for (const Region& region : op.regions) {
      for (const Operation& inner : region.operations) note_uses(inner, at, last);
    }
  }

  // The position of the last operation that needs each value.
  Positions last_uses(const Region& region) const {
    Positions last;
    for (size_t i = 0; i < region.operations.size(); ++i) note_uses(region.operations[i], i, last);
    for (size_t i = region.operations.size(); i-- > 0;) {
      const Operation& op = region.operations[i];
      if (op.results.size() != 1 || !last.contains(op.results[0])) continue;
      if (!on_demand_[op.results[0]] && !renamed_[op.results[0]]) continue;
      // Its operands stand in for it.
      for (ValueId id : op.operands) {
        if (id != kNone) last[id] = std::max(last[id], last[op.results[0]]);
      }
    }
    return last;
  }

  int most_in(const Region& region, bool is_consume = false) {
    const Positions last = last_uses(region);
    const size_t count = region.operations.size();
    // Twice the position of an operation: its operands are alive; one more: its results are.
    std::vector<int> alive(2 * count + 1);
    auto live = [&](ValueId id, size_t first) {
      auto found = last.find(id);
      if (found == last.end()) return;
      for (size_t i = first; i <= 2 * found->second; ++i) alive[i] += registers_[id];
    };
    for (ValueId id : region.arguments) live(id, 0);
    bool ahead = is_consume && !yields_product(region) && !reads_all_early(region);
    std::optional<size_t> product;  // the one before
    for (size_t i = 0; i < count; ++i) {
      const Operation& op = region.operations[i];
      bool early = is_consume && is_read_early(op);
      // Nothing keeps fresh sums from being made while those of the product before are used.
      bool fresh = ring_dot(kernel_, definitions_, op, threads_) && is_constant(op.operands[0]);
      for (ValueId id : op.results) live(id, early ? 0 : 2 * (fresh ? product.value_or(i) : i) + 1);
      if (op.op == Op::kDot) product = i;
      if (!early || !ahead) continue;
      for (int& all : alive) all += registers_[op.results[0]];  // those of the next step
    }
    for (size_t i = 0; i < count; ++i) {
      const Operation& op = region.operations[i];
      bool pipeline = op.op == Op::kPipeline;
      int inside = 0;
      for (size_t r = pipeline ? 1 : 0; r < op.regions.size(); ++r) {
        inside = std::max(inside, most_in(op.regions[r], pipeline));
      }
      alive[2 * i] += inside;
      // What is carried begins in the registers of what ends here.
      const auto first = static_cast<size_t>(info(op.op).operands);
      for (size_t k = first; (pipeline || op.op == Op::kFor) && k < op.operands.size(); ++k) {
        if (last.at(op.operands[k]) == i) alive[2 * i] -= registers_[op.operands[k]];
      }
    }
    return *std::ranges::max_element(alive);
  }

  bool is_constant(ValueId id) const {
    return definitions_[id] && definitions_[id]->op == Op::kConstant;
  }

  // Words at places known from the beginning of a step are read there, all of them.
  bool is_read_early(const Operation& op) const {
    if (op.op != Op::kRead || on_demand_[op.results[0]] || op.operands[3] != kNone) return false;
    const Operation* offset = op.operands[2] == kNone ? nullptr : definitions_[op.operands[2]];
    return op.operands[2] == kNone || (offset && offset->op == Op::kIndexConstant);
  }

  // Such steps give their stage back at once instead of reading ahead.
  bool reads_all_early(const Region& consume) const {
    return std::ranges::all_of(consume.operations, [&](const Operation& op) {
      return op.op != Op::kRead || is_read_early(op);
    });
  }

  // Products that run on when their step ends forbid to read ahead of it.
  bool yields_product(const Region& consume) const {
    return std::ranges::any_of(consume.operations.back().operands, [&](ValueId id) {
      const Operation* op = definitions_[id];
      return op && ring_dot(kernel_, definitions_, *op, threads_) &&
             kernel_.types[id].shape[1] > kFewColumns;
    });
  }

  const Kernel& kernel_;
  const std::vector<Layout>& layouts_;
  int threads_;
  std::vector<const Operation*> definitions_;
  std::vector<std::vector<User>> users_;
  std::vector<bool> on_demand_, renamed_, of_places_, in_words_;
  std::vector<int> registers_;
};

}  // namespace

int live_registers(const Kernel& kernel, const std::vector<Layout>& layouts, int threads) {
  return LiveRegisters(kernel, layouts, threads).run();
}

int registers_with(const SmLimits& sm, int64_t ctas_per_sm, int threads) {
  constexpr int kSchedulers = 4;
  int64_t warps = (ctas_per_sm * threads + kWarp * kSchedulers - 1) / (kWarp * kSchedulers);
  return static_cast<int>(
      std::min<int64_t>(sm.registers / kSchedulers / kWarp / warps / 8 * 8, kMostRegisters));
}

RegisterShare share_registers(const SmLimits& sm, int live, int threads, int copying) {
  int equal = registers_with(sm, 1, threads + copying);
  if (copying % kWarpgroup != 0 || copying == 0 || live + kBesidesTiles + kToSpare <= equal) {
    return {equal, false};
  }
  int rest = (sm.registers - copying * kCopyRegisters) / threads / 8 * 8;
  return {std::min(rest, kMostDealt), true};
}

Support GpuEstimate::fits() const {
  if (shared_bytes > shared_limit) {
    return Support::no(
        fmt::format("needs {} bytes of shared memory, a CTA has {}", shared_bytes, shared_limit));
  }
  if (registers > register_limit) {
    return Support::no(
        fmt::format("needs {} registers, a thread has {}", registers, register_limit));
  }
  return Support::yes();
}

GpuEstimate estimate_gpu(const Kernel& kernel, int threads, const GpuTarget& target) {
  const Kernel expanded = expand_math(kernel, gpu_math(target.arch));
  GpuEstimate out;
  const BlockPlan plan = plan_block(expanded, threads, target);
  out.shared_bytes = plan.shared_bytes;
  out.shared_limit = target.shared_bytes;
  out.live_registers = live_registers(expanded, assign_layouts(expanded, threads), threads);
  out.registers = out.live_registers + kBesidesTiles;
  out.register_limit = share_registers(arch_spec(target.arch).sm, out.live_registers, threads,
                                       plan.threads - threads)
                           .computing;
  return out;
}

GpuEstimate estimate_gpu_once(const Kernel& kernel, int threads, const GpuTarget& target) {
  const std::string key = fmt::format("{} {} {} {}", hex(content_of(kernel)), threads, target.arch,
                                      target.shared_bytes);
  return *process_cache<GpuEstimate>().get(sha256(key), [&] {
    auto made = std::make_shared<const GpuEstimate>(estimate_gpu(kernel, threads, target));
    return std::pair{std::move(made), sizeof(GpuEstimate)};
  });
}

}  // namespace tenon::codegen
