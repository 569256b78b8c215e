// Provider options: one struct, one table. docs/options.md is its text for people.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace tenon::provider {

struct Options {
  int device_id = 0;
  std::string target = "auto";             // auto | cpu; must not contradict the chosen device
  std::string precision_mode = "exact";    // exact | int8
  std::string claim = "gainful";           // gainful | all
  std::vector<std::string> exclude_ops;    // comma-separated op types
  std::vector<std::string> exclude_nodes;  // comma-separated node names
  bool require_full_claim = false;
  std::string dump_dir;     // every stage of every kernel goes here
  std::string report_file;  // JSON: claims, reasons, fusions, kernels
};

// Bare keys and their values. Throws UserError listing what is valid.
Options parse_options(const std::map<std::string, std::string>& entries);
// Every key with its effective value, for the report.
std::map<std::string, std::string> effective(const Options& options);

}  // namespace tenon::provider
