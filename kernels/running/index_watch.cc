#include "kernels/running/index_watch.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "codegen/tile/builder.h"
#include "codegen/tile/content.h"
#include "kernels/running/compiled_kernels.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::ValueId;

constexpr int kThreads = 128, kLanes = 256;

codegen::Kernel watch_kernel(DType dtype) {
  Builder b("watch_indices_" + std::string(name(dtype)));
  const ValueId indices = b.buffer("indices", dtype), flag = b.buffer("flag", DType::kI32);
  const ValueId first = b.index_parameter("first"), step = b.index_parameter("step");
  const ValueId count = b.index_parameter("count");
  const ValueId lowest = b.index_parameter("lowest"), bound = b.index_parameter("bound");
  const auto number = [&](ValueId index) {
    return b.splat(b.from_index(index, DType::kI64), {kLanes});
  };
  const ValueId zeros = b.integer_constant(DType::kI32, 0, {kLanes});
  const ValueId ones = b.integer_constant(DType::kI32, 1, {kLanes});
  const ValueId outside =
      b.loop(b.index(0), count, b.index(kLanes), {zeros}, [&](ValueId at, auto carried) {
        const ValueId lane = b.add(number(at), b.iota(DType::kI64, {kLanes}, 0));
        const ValueId inside = b.compare(Fn::kLess, lane, number(count));
        const ValueId element = b.add(number(first), b.mul(lane, number(step)));
        const ValueId index = b.cast(b.gather(indices, b.index(0), element, inside), DType::kI64);
        const ValueId wrong = b.binary(Fn::kOr, b.compare(Fn::kLess, index, number(lowest)),
                                       b.compare(Fn::kGreaterEqual, index, number(bound)));
        const ValueId counts = b.binary(Fn::kAnd, wrong, inside);
        return std::vector<ValueId>{b.select(counts, ones, carried[0])};
      })[0];
  const ValueId any = b.reduce(Fn::kMax, outside, 0);
  const ValueId none = b.integer_constant(DType::kI32, 0);
  b.branch(b.compare(Fn::kNotEqual, any, none), [&] {
    b.store({flag, b.index(0)}, any);
    return std::vector<ValueId>{};
  });
  codegen::Kernel kernel = b.finish();
  kernel.pdl = true;  // who comes behind it need not wait to be launched
  return kernel;
}

}  // namespace

IndexWatch::IndexWatch(const Program& program, const codegen::GpuTarget& target,
                       device::Device& device, DiskCache* cache) {
  const auto load = [&](DType dtype) {
    const codegen::Kernel kernel = watch_kernel(dtype);
    const Digest content = codegen::content_of(kernel);
    return device.load(*compile_gpu_once(kernel, content, kThreads, target, {}, cache).code, cache);
  };
  for (const CompiledLaunch& launch : program.launches) {
    for (const CheckedIndices& checked : launch.checks) {
      if (program.slots[checked.slot].kind == Slot::Kind::kConstant) continue;
      auto& kernel = checked.dtype == DType::kI32 ? i32_ : i64_;
      if (kernel == nullptr) kernel = load(checked.dtype);
    }
  }
}

bool IndexWatch::enqueue(device::Stream& stream, const ShapeInstance::Check& check,
                         device::Address indices, device::Address flag, bool after_all) const {
  const int64_t count = (check.count - check.first + check.step - 1) / check.step;
  if (count <= 0) return after_all;
  const auto number = [](int64_t value) { return static_cast<uint64_t>(value); };
  const uint64_t arguments[] = {indices,
                                flag,
                                number(check.first),
                                number(check.step),
                                number(count),
                                number(check.lowest),
                                number(check.bound)};
  const device::LoadedKernel& kernel = check.dtype == DType::kI32 ? *i32_ : *i64_;
  stream.launch(kernel, 1, arguments, {}, {.after_all = after_all});
  return !kernel.pdl;
}

IndexFlags::IndexFlags(std::shared_ptr<device::Device> device, size_t launches)
    : device_(std::move(device)),
      flags_(static_cast<int32_t*>(
          device_->allocate_pinned(launches * sizeof(int32_t), "flags of watched indices"))),
      count_(launches) {
  std::fill_n(flags_, count_, 0);
}

IndexFlags::~IndexFlags() {
  if (device_ != nullptr) device_->release_pinned(flags_);
}

IndexFlags& IndexFlags::operator=(IndexFlags&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(flags_, other.flags_);
  std::swap(count_, other.count_);
  return *this;
}

device::Address IndexFlags::address(size_t launch) const {
  return reinterpret_cast<device::Address>(flags_ + launch);
}

void IndexFlags::check(const Program& program) {
  for (size_t launch = 0; launch < count_; ++launch) {
    if (const_cast<volatile int32_t*>(flags_)[launch] == 0) continue;
    std::fill_n(flags_, count_, 0);
    const CompiledLaunch& wrong = program.launches[launch];
    const bool has_one_reader = wrong.checks.size() == 1;
    throw UserError(
        fmt::format("node '{}': an index or a length is out of bounds; the nearest one inside was "
                    "taken instead",
                    has_one_reader ? wrong.checks[0].check.node : wrong.node));
  }
}

}  // namespace tenon::kernels
