#include "codegen/product_operands.h"

#include <algorithm>

namespace tenon::codegen {

ProductOperand product_operand(const Kernel& kernel,
                               const std::vector<const Operation*>& definitions, ValueId id) {
  ProductOperand out;
  const Operation* definition = definitions[id];
  if (definition && definition->op == Op::kTranspose) {
    out.turned = true;
    id = definition->operands[0];
    definition = definitions[id];
  }
  if (!definition || definition->op != Op::kConcat) {
    out.parts.push_back({id, 0, 0});
    return out;
  }
  int position = 0;
  for (ValueId part : definition->operands) {
    out.parts.push_back(
        {part, definition->axis == 0 ? position : 0, definition->axis == 0 ? 0 : position});
    position += kernel.types[part].shape[static_cast<size_t>(definition->axis)];
  }
  return out;
}

namespace {

using Users = std::vector<std::vector<std::pair<const Operation*, size_t>>>;

void collect_users(const Region& region, Users& users) {
  for (const Operation& op : region.operations) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (op.operands[i] != kNone) users[op.operands[i]].emplace_back(&op, i);
    }
    for (const Region& inner : op.regions) collect_users(inner, users);
  }
}

}  // namespace

std::set<const Operation*> folded_into_products(const Kernel& kernel,
                                                const std::vector<const Operation*>& definitions,
                                                int threads) {
  Users users(kernel.types.size());
  collect_users(kernel.body, users);
  std::set<const Operation*> out;
  auto fold = [&](Op kind, const auto& takes) {
    for (size_t id = 0; id < definitions.size(); ++id) {
      const Operation* op = definitions[id];
      if (!op || op->op != kind || users[id].empty()) continue;
      bool all = std::ranges::all_of(
          users[id], [&](const auto& user) { return takes(op, *user.first, user.second); });
      if (all) out.insert(op);
    }
  };
  auto into_product = [&](const Operation*, const Operation& user, size_t operand) {
    if (!is_tensor_core_dot(kernel, user) || operand == 0) return false;
    auto dot = ring_dot(kernel, definitions, user, threads);
    return !dot || dot->right || operand == 1;
  };
  fold(Op::kTranspose, into_product);
  fold(Op::kConcat, [&](const Operation* op, const Operation& user, size_t operand) {
    return into_product(op, user, operand) || out.contains(&user);
  });
  auto from_stage = [&](const Operation* read, const Operation& user, size_t operand) {
    auto dot = ring_dot(kernel, definitions, user, threads);
    bool on_the_right = dot && (dot->right == read || dot->beside == read);
    return (operand == 2 && on_the_right) || (operand == 1 && dot && dot->left == read);
  };
  auto from_memory = [&](const Operation* read, const Operation& user, size_t operand) {
    if (user.op != Op::kTranspose && user.op != Op::kConcat) return from_stage(read, user, operand);
    const auto& readers = users[user.results[0]];
    return !readers.empty() && std::ranges::all_of(readers, [&](const auto& next) {
      return from_stage(read, *next.first, next.second);
    });
  };
  fold(Op::kRead, from_memory);
  fold(Op::kLoad, [&](const Operation* load, const Operation& user, size_t operand) {
    return user.op == Op::kTranspose && from_memory(load, user, operand);
  });
  return out;
}

std::set<ValueId> rings_of_tf32(const Kernel& kernel) {
  Users users(kernel.types.size());
  collect_users(kernel.body, users);
  std::set<ValueId> rings, others;
  const std::vector<const Operation*> definitions = definitions_of(kernel);
  auto feeds_tf32 = [](const auto& user) { return user.first->tf32 && user.second > 0; };
  auto feeds_tf32_turned = [&](const auto& user) {
    return feeds_tf32(user) || (user.first->op == Op::kTranspose &&
                                std::ranges::all_of(users[user.first->results[0]], feeds_tf32));
  };
  for (const Operation* op : definitions) {
    if (!op || op->op != Op::kRead || kernel.types[op->results[0]].dtype != DType::kF32) continue;
    bool all = std::ranges::all_of(users[op->results[0]], feeds_tf32_turned);
    (all ? rings : others).insert(op->operands[0]);
  }
  std::erase_if(rings, [&](ValueId ring) { return others.contains(ring); });
  return rings;
}

}  // namespace tenon::codegen
