// Ops that exporters write and stock ONNX Runtime has no schema for (`trt::*`, and where processes
// run a model together collectives of `com.microsoft`), registered with typed outputs so that such
// models load. They stand for nodes that get claimed: a session in which one is left out
// fails to load, after a warning with the reason.
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>
#include <vector>

#include "provider/custom_op_schemas.h"

namespace tenon::provider {

struct CustomOp;

class CustomOps {
 public:
  CustomOps();
  ~CustomOps();
  CustomOps(const CustomOps&) = delete;
  CustomOps& operator=(const CustomOps&) = delete;

  size_t domain_count() const { return domains_.size(); }
  void copy_domains(OrtCustomOpDomain** into, size_t count) const;

 private:
  void add_domain(const char* name, std::vector<Schema> schemas);
  void make_domains_known() const;

  std::vector<std::vector<Schema>> schemas_;    // their elements never move: the ops point at them,
  std::vector<std::unique_ptr<CustomOp>> ops_;  // and the domains at these
  std::vector<OrtCustomOpDomain*> domains_;
};

}  // namespace tenon::provider
