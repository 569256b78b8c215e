// What a rank holds and exchanges after a graph was cut.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"

namespace tenon::distributed {

struct WeightShare {
  std::string name;
  std::string part;  // "columns 0..2048 of 4096"
  int64_t bytes = 0, whole_bytes = 0;
  std::vector<int64_t> bytes_by_rank;
};

struct Exchange {
  std::string op;    // "AllReduce"
  std::string node;  // whose result it is
  DType dtype = DType::kUndefined;
  Dim elements, bytes;  // of what ranks have together afterwards
};

struct HeldWhole {
  std::string name;  // of a node or a constant
  std::string reason;
  int64_t bytes = 0;  // of constants that every rank holds because of it
};

// Caches whose head dim is a symbol: a rank binds its own heads.
struct CacheShare {
  std::string symbol;
  std::vector<std::string> inputs;
  std::vector<int64_t> heads_by_rank;
};

// Something that the file asks for.
struct AnnotationAnswer {
  std::string node;
  std::string asked;   // "columns", "rows", "whole"; empty: not known
  std::string reason;  // why not; empty: it is done
};

struct ShardingReport {
  int64_t rank = 0, ranks = 1;
  std::string engine;  // that moves what ranks exchange
  std::vector<WeightShare> weights;
  std::vector<Exchange> exchanges;  // in the order in which ranks run them
  std::vector<HeldWhole> wholes;
  std::vector<CacheShare> caches;
  std::vector<AnnotationAnswer> annotations;
  std::string tokens;                  // whether ranks divide them between products, or why not
  int64_t constant_bytes = 0;          // of all constants of the graph before
  int64_t whole_bytes = 0;             // of constants that every rank holds
  std::vector<int64_t> bytes_by_rank;  // all that each rank holds, predicted

  int64_t bytes() const {
    return bytes_by_rank.empty() ? 0 : bytes_by_rank[static_cast<size_t>(rank)];
  }
  std::string text() const;
};

}  // namespace tenon::distributed
