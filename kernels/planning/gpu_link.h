// What connects GPUs of one architecture on one machine, by data sheets.
#pragma once

#include <string_view>

#include "kernels/planning/link_model.h"

namespace tenon::kernels {

struct GpuLink {
  std::string_view name;
  LinkModel model;
};

// Data centres' GPUs have NVLink, others PCIe: 32 GB/s one way with compute capability 8, 64 later.
inline GpuLink gpu_link(int compute_major, int compute_minor) {
  const LinkModel nvlink = nvlink_model(compute_major);
  if (compute_major == 8 && compute_minor == 0) return {"NVLink 3", nvlink};
  if (compute_major == 9) return {"NVLink 4", nvlink};
  if (compute_major == 10) return {"NVLink 5", nvlink};
  const bool old = compute_major == 8;
  return {old ? "PCIe 4 x16" : "PCIe 5 x16", {nvlink.base_us, nvlink.step_us, old ? 32.0 : 64.0}};
}

}  // namespace tenon::kernels
