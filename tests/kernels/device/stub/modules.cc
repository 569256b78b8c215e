#include "tests/kernels/device/stub/modules.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>

#include "base/dtype.h"
#include "base/error.h"
#include "base/hash.h"
#include "codegen/interpret.h"
#include "codegen/tile/op_info.h"
#include "codegen/tile/text.h"
#include "tests/kernels/device/stub/tensor_maps.h"

namespace tenon::stub {
namespace {

void mark_stores(const codegen::Region& region, std::vector<bool>& written) {
  for (const codegen::Operation& operation : region.operations) {
    codegen::for_each_buffer(operation, codegen::info(operation.op).writes,
                             [&](codegen::ValueId id) {
                               const auto buffer = static_cast<size_t>(id);
                               if (buffer < written.size()) written[buffer] = true;  // else scratch
                             });
    for (const codegen::Region& inner : operation.regions) mark_stores(inner, written);
  }
}

std::shared_ptr<const Program> read_program(const std::string& text) {
  auto program = std::make_shared<Program>();
  program->kernel = codegen::parse(text);
  program->written.resize(program->kernel.parameters.size());
  mark_stores(program->kernel.body, program->written);
  return program;
}

bool is_buffer(const codegen::Parameter& parameter) {
  return parameter.type.kind == codegen::Type::Kind::kBuffer;
}

Result check_shape(World& world, const Function& function, const LaunchShape& shape,
                   const std::string& work) {
  constexpr unsigned kMostThreads = 1024;
  const auto most_shared = static_cast<size_t>(current_device().description.shared_bytes);
  if (shape.grid == 0 || shape.grid > 0x7fffffffU || shape.block == 0 ||
      shape.block > kMostThreads) {
    world.report(fmt::format("{}: {} CTAs of {} threads", work, shape.grid, shape.block));
    return kInvalidValue;
  }
  if (const unsigned required = function.module->threads;
      required != 0 && shape.block != required) {
    world.report(fmt::format("{}: CTAs of {} threads, and it was compiled for {}", work,
                             shape.block, required));
    return kInvalidValue;
  }
  if (shape.cluster == 0 || shape.cluster > 8 || shape.grid % shape.cluster != 0) {
    world.report(fmt::format("{}: {} CTAs in clusters of {}", work, shape.grid, shape.cluster));
    return kInvalidValue;
  }
  if (shape.shared_bytes > function.dynamic_shared_bytes || shape.shared_bytes > most_shared) {
    world.report(
        fmt::format("{}: {} bytes of shared memory, of which {} were asked for and {} are "
                    "there",
                    work, shape.shared_bytes, function.dynamic_shared_bytes, most_shared));
    return kInvalidValue;
  }
  return kSuccess;
}

Result check_count(World& world, const Function& function, void** arguments,
                   const std::string& work) {
  constexpr size_t kDescriptorBytes = sizeof(device::TensorMap);
  for (const size_t bytes : function.module->descriptors) {
    if (bytes == kDescriptorBytes) continue;
    world.report(fmt::format("{}: a parameter of {} bytes where a TMA descriptor has {}", work,
                             bytes, kDescriptorBytes));
    return kInvalidValue;
  }
  const size_t wanted =
      function.program->kernel.parameters.size() + function.module->descriptors.size();
  size_t count = 0;
  while (arguments != nullptr && count <= wanted && arguments[count] != nullptr) ++count;
  if (count == wanted) return kSuccess;
  world.report(fmt::format("{}: it takes {} arguments, got {}{}", work, wanted,
                           count > wanted ? "more than " : "", count > wanted ? wanted : count));
  return kInvalidValue;
}

// Answers with a mild error what would be the end of a real device: the test goes on.
Result add_buffer(World& world, const codegen::Parameter& parameter, bool written, Address address,
                  Work& work) {
  if (address == 0) return kSuccess;  // an empty tensor
  const std::string what = fmt::format("argument %{}", parameter.name);
  const Allocation* allocation = audit(world, work.name, what, address, 0);
  if (allocation == nullptr) return kInvalidValue;
  if (!allocation->pinned && allocation->device != current_device().number) {
    world.report(fmt::format("{}: {} is memory of device {}", work.name, what, allocation->device));
    return kInvalidValue;
  }
  const auto size = std::max<int64_t>(1, bit_width(parameter.type.dtype) / 8);
  if (address % static_cast<Address>(size) != 0) {
    world.report(fmt::format("{}: {} is not aligned to {} bytes", work.name, what, size));
    return kInvalidValue;
  }
  work.accesses.push_back({allocation->base, address, 1, written});
  return kSuccess;
}

}  // namespace

std::shared_ptr<const Program> program_of(const char* ptx) {
  struct Cache {
    std::mutex mutex;
    std::map<Digest, std::shared_ptr<const Program>> programs;
  };
  static auto* const cache = new Cache;
  const std::string text = codegen::tile_program(ptx);
  const Digest key = sha256(text);
  {
    const std::lock_guard lock(cache->mutex);
    if (const auto entry = cache->programs.find(key); entry != cache->programs.end()) {
      return entry->second;
    }
  }
  auto program = read_program(text);
  const std::lock_guard lock(cache->mutex);
  return cache->programs.try_emplace(key, std::move(program)).first->second;
}

unsigned required_threads(std::string_view ptx) {
  constexpr std::string_view kDirective = ".reqntid ";
  const size_t found = ptx.find(kDirective);
  if (found == std::string_view::npos) return 0;
  return static_cast<unsigned>(std::strtoul(ptx.data() + found + kDirective.size(), nullptr, 10));
}

Result prepare(World& world, const Function& function, const LaunchShape& shape, void** arguments,
               Work& work) {
  const std::shared_ptr<const Program> program = function.program;
  const codegen::Kernel& kernel = program->kernel;
  work.name = fmt::format("kernel '{}'", kernel.name);
  if (const Result result = check_shape(world, function, shape, work.name)) return result;
  if (const Result result = check_count(world, function, arguments, work.name)) return result;

  std::vector<void*> buffers;
  std::vector<int64_t> indices;
  std::vector<uint64_t> values;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const uint64_t value = *static_cast<const uint64_t*>(arguments[i]);
    values.push_back(value);
    if (!is_buffer(kernel.parameters[i])) {
      indices.push_back(static_cast<int64_t>(value));
      continue;
    }
    buffers.push_back(reinterpret_cast<void*>(value));
    if (const Result result =
            add_buffer(world, kernel.parameters[i], program->written[i], value, work)) {
      return result;
    }
  }
  const std::span descriptors(arguments + kernel.parameters.size(),
                              function.module->descriptors.size());
  if (const Result result = check_tma_descriptors(world, kernel, descriptors, values, work.name)) {
    return result;
  }
  work.is_launch = true;
  work.pdl = shape.pdl;
  work.run = [program, buffers, indices,
              tasks = static_cast<int64_t>(shape.grid)](codegen::LaunchMemory* memory) {
    codegen::interpret(program->kernel, buffers, indices, 0, tasks, memory);
  };
  return kSuccess;
}

}  // namespace tenon::stub
