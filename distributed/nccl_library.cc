#include "distributed/nccl_library.h"

#include <fmt/format.h>

#include <string_view>

#include "base/error.h"

namespace tenon::distributed {
namespace {

constexpr LibraryNames kNames{"NCCL", "nvidia-nccl-cu13", "TENON_NCCL_LIBRARY", "libnccl.so.2"};

// Empty: it will do.
std::string fill(const device::VendorLibrary& library, NcclFunctions& functions) {
  const std::optional<int> version = library.version("ncclGetVersion");
  if (!version) return "does not say its version (ncclGetVersion)";
  if (*version < kOldestNccl) {
    return fmt::format("is NCCL {}, {} or newer is needed", nccl_version_text(*version),
                       nccl_version_text(kOldestNccl));
  }
  functions = {};
  functions.version = *version;
  functions.path = library.path();
#define TENON_FIND(member, symbol, parameters) \
  if (!library.find(symbol, functions.member)) return "has no function " symbol;
  TENON_NCCL_FUNCTIONS(TENON_FIND)
  TENON_FIND(error_text, "ncclGetErrorString", ())
  TENON_FIND(last_error, "ncclGetLastError", ())
#undef TENON_FIND
  if (has_all_to_all(*version)) library.find("ncclAlltoAll", functions.all_to_all);
  return {};
}

std::optional<int> type_code(DType dtype) {
  switch (dtype) {
    case DType::kI8:
      return 0;
    case DType::kU8:
    case DType::kBool:  // min and max of 0 and 1
      return 1;
    case DType::kI32:
      return 2;
    case DType::kU32:
      return 3;
    case DType::kI64:
      return 4;
    case DType::kU64:
      return 5;
    case DType::kF16:
      return 6;
    case DType::kF32:
      return 7;
    case DType::kF64:
      return 8;
    case DType::kBF16:
      return 9;
    case DType::kF8E4M3FN:
      return 10;
    case DType::kF8E5M2:
      return 11;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

bool has_all_to_all(int version) { return version >= 22800; }
bool has_graph_usage_mode(int version) { return version >= 22900; }

NcclConfig::NcclConfig(int nccl_version)
    : size(has_graph_usage_mode(nccl_version) ? sizeof(NcclConfig)
                                              : offsetof(NcclConfig, channels_per_net_peer)),
      version(has_graph_usage_mode(nccl_version) ? 22900 : 22700) {}

std::optional<int> nccl_max_ctas(int version, int compute_major, int asked) {
  if (asked > 0) return asked;
  if (version >= 22800 && compute_major == 10) return 32;
  return std::nullopt;
}

NcclType nccl_type(DType dtype, Reduction reduction, bool adds_fp8) {
  const auto no = [&](std::string_view why) {
    return NcclType{
        Support::no(fmt::format("NCCL has no {} of {}: {}", name(reduction), name(dtype), why))};
  };
  if (Support answer = can_reduce(dtype, reduction); !answer) return {std::move(answer)};
  const std::optional<int> code = type_code(dtype);
  if (!code) return no("it does not know the type");
  if (is_small_float(dtype) && !adds_fp8) return no("the GPU must be sm_90 or newer");
  if (is_small_float(dtype) && reduction == Reduction::kAverage) {
    return no("it takes the type for sums and products only");  // 2.28.9: invalid argument
  }
  const bool picks_one = reduction == Reduction::kMin || reduction == Reduction::kMax;
  if (is_floating(dtype) && picks_one) return no("it would drop NaN, which has to win");
  return {Support::yes(), *code};
}

int nccl_reduction(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return 0;
    case Reduction::kProd:
      return 1;
    case Reduction::kMax:
      return 2;
    case Reduction::kMin:
      return 3;
    case Reduction::kAverage:
      return 4;
  }
  throw InternalError("no such reduction");
}

std::string NcclFunctions::words(NcclResult result, NcclHandle handle) const {
  const char* kind = error_text(result);
  const char* detail = last_error(handle);
  const bool has_detail = detail != nullptr && detail[0] != '\0';
  return fmt::format("{}{}{}", kind == nullptr ? "an error without a name" : kind,
                     has_detail ? ": " : "", has_detail ? detail : "");
}

NcclAnswer load_nccl(std::span<const std::string> paths) {
  return load_library(kNames, paths, fill);
}

const NcclAnswer& nccl() {
  static const NcclAnswer& answer = *new NcclAnswer(load_nccl(library_paths(kNames)));
  return answer;
}

}  // namespace tenon::distributed
