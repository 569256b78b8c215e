#include "distributed/nvshmem_library.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

namespace tenon::distributed {
namespace {

constexpr LibraryNames kNames{"NVSHMEM", "nvidia-nvshmem-cu13", "TENON_NVSHMEM_LIBRARY",
                              "libnvshmem_host.so.3"};

struct NamedType {
  DType dtype;
  const char* name;  // in the names of functions
};
constexpr NamedType kTypes[] = {
    {DType::kBool, "uint8"},  // min and max of 0 and 1
    {DType::kI8, "int8"},       {DType::kU8, "uint8"},   {DType::kI16, "int16"},
    {DType::kU16, "uint16"},    {DType::kI32, "int32"},  {DType::kU32, "uint32"},
    {DType::kI64, "int64"},     {DType::kU64, "uint64"}, {DType::kF16, "half"},
    {DType::kBF16, "bfloat16"}, {DType::kF32, "float"},  {DType::kF64, "double"}};
constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kProd, Reduction::kMin,
                                     Reduction::kMax};

std::optional<int> version_of(const device::VendorLibrary& library) {
  void (*get)(int* major, int* minor, int* patch) = nullptr;
  if (!library.find("nvshmemx_vendor_get_version_info", get)) return std::nullopt;
  int major = 0, minor = 0, patch = 0;
  get(&major, &minor, &patch);
  return major * 10000 + minor * 100 + patch;
}

// Empty: it will do.
std::string fill(const device::VendorLibrary& library, NvshmemFunctions& functions) {
  const std::optional<int> version = version_of(library);
  if (!version) return "does not say its version (nvshmemx_vendor_get_version_info)";
  if (*version < kOldestNvshmem) {
    return fmt::format("is NVSHMEM {}, {} or newer is needed", nvshmem_version_text(*version),
                       nvshmem_version_text(kOldestNvshmem));
  }
  functions = {};
  functions.version = *version;
  functions.path = library.path();
#define TENON_FIND(result, member, symbol, parameters) \
  if (!library.find(symbol, functions.member)) return "has no function " symbol;
  TENON_NVSHMEM_FUNCTIONS(TENON_FIND)
#undef TENON_FIND
  for (const auto& [dtype, type_name] : kTypes) {
    for (const Reduction reduction : kReductions) {
      const std::string symbol =
          fmt::format("nvshmemx_{}_{}_reduce_on_stream", type_name, name(reduction));
      NvshmemReduce found = nullptr;
      if (library.find(symbol.c_str(), found)) functions.reduce[{dtype, reduction}] = found;
    }
  }
  return {};
}

}  // namespace

std::string nvshmem_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

bool reduces_bytes(int version) { return version >= 30205; }

Support NvshmemFunctions::supports(DType dtype, Reduction reduction) const {
  const auto no = [&](std::string_view why) {
    return Support::no(
        fmt::format("NVSHMEM has no {} of {}: {}", name(reduction), name(dtype), why));
  };
  if (Support answer = can_reduce(dtype, reduction); !answer) return answer;
  if (reduction == Reduction::kAverage) return no("ask for the sum");
  if (!reduce.contains({dtype, reduction})) return no("it does not know the type");
  if (bit_width(dtype) == 8 && !reduces_bytes(version)) {
    return no(
        fmt::format("8 bits are right from 3.2.5 on, this is {}", nvshmem_version_text(version)));
  }
  const bool picks_one = reduction == Reduction::kMin || reduction == Reduction::kMax;
  if (is_floating(dtype) && picks_one) return no("it would drop NaN, which has to win");
  return Support::yes();
}

NvshmemAnswer load_nvshmem(std::span<const std::string> paths) {
  return load_library(kNames, paths, fill);
}

const NvshmemAnswer& nvshmem() {
  static const NvshmemAnswer& answer = *new NvshmemAnswer(load_nvshmem(library_paths(kNames)));
  return answer;
}

}  // namespace tenon::distributed
