// Descriptors of the stub: what was set, and the graphs that they make, computed on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/cudnn/names.h"

namespace stub_cudnn {

struct Attribute {
  int type = 0;
  std::vector<std::byte> bytes;
};

struct Object {
  int kind = 0;
  bool finalized = false;
  int engine = 0;  // of engines, configs and plans
  std::map<int, Attribute> attributes;

  template <typename Element>
  std::vector<Element> list(int attribute) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return {};
    const auto* data = reinterpret_cast<const Element*>(found->second.bytes.data());
    return {data, data + found->second.bytes.size() / sizeof(Element)};
  }
  template <typename Element>
  Element one(int attribute) const {
    return list<Element>(attribute).at(0);
  }
  const Object& object(int attribute) const { return *one<const Object*>(attribute); }
};

size_t bytes_of(int type);  // of one element; 0: no such type

// What the plan's graph makes of the pack's buffers.
void compute(const Object& operation_graph, const Object& pack);

}  // namespace stub_cudnn
