// What must be the same on all ranks: the model, options and build when they start, shapes at each
// Run. Ranks that differ would wait for each other or, worse, add what does not belong together.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tenon::distributed {

class Store;

// Named values, in an order that all ranks share.
struct Fingerprint {
  std::vector<std::pair<std::string, std::string>> fields;  // {"shape of 'ids'", "[1, 7]"}
};

struct StartFacts {
  std::string model;    // "sha256 5e21…"
  std::string options;  // those that must agree, as text
  std::string build;    // of this library
  int ranks = 1;
  std::string engine;  // Communicator::engine(): "nccl 2.28.9"
};
Fingerprint fingerprint(const StartFacts& facts);

// All ranks call it, with the same occasion ("start", "Run"). Where they differ, every rank throws
// the same UserError, which names the field, the ranks and their values: "the ranks differ in the
// model: sha256 5e… on ranks 0, 1 and 3, sha256 77… on rank 2". The store stays usable.
void require_equal(Store& store, std::string_view occasion, const Fingerprint& mine,
                   std::chrono::milliseconds deadline);

// What it says, without a store: of the fingerprints in the order of ranks; empty where all agree.
std::string difference(const std::vector<Fingerprint>& of_ranks);
std::string difference_of_some(const std::map<int, Fingerprint>& of_ranks);  // of some ranks

std::string encode(const Fingerprint& fingerprint);
Fingerprint decode_fingerprint(std::string_view bytes);  // UserError where it is none

}  // namespace tenon::distributed
