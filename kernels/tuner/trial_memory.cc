#include "kernels/tuner/trial_memory.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "base/convert.h"
#include "base/error.h"

namespace tenon::kernels {
namespace {

using device::Address;

// Elements that repeat: a prime, so that no two rows of a matrix are equal.
constexpr int64_t kPeriod = 65521;

Address address_of(const std::shared_ptr<void>& memory) {
  return reinterpret_cast<Address>(memory.get());
}

int64_t elements_of(const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

// Around 0, as activations are; a scale of e8m0 has no sign.
double number(std::mt19937& random, DType dtype) {
  const double value = static_cast<double>(random() % 2001) / 1000.0 - 1.0;
  if (dtype == DType::kBool) return 1;
  return dtype == DType::kF8E8M0 ? 1 : value;
}

double element(const TrialInput& input, int64_t index, std::mt19937& random) {
  using Holds = TrialInput::Holds;
  switch (input.holds) {
    case Holds::kNumbers:
      return number(random, input.dtype);
    case Holds::kKeyCounts:
      return static_cast<double>(input.limit);
    case Holds::kPositions:
      return static_cast<double>(std::min(index % 7, input.limit - 1));
    case Holds::kSizes:
      return static_cast<double>(input.sizes.at(static_cast<size_t>(index)));
    case Holds::kCodes:
    case Holds::kZeros:
      break;
  }
  return 0;
}

// What an input begins with, which then repeats.
std::vector<std::byte> begin_of(const TrialInput& input, size_t number) {
  std::mt19937 random(static_cast<unsigned>(number) + 1);
  // Two elements of four bits are one byte: an even number of them repeats.
  const int64_t period =
      std::min(elements_of(input.dims), is_packed(input.dtype) ? 4 * kPeriod : kPeriod);
  std::vector<std::byte> bytes(storage_bytes(input.dtype, period));
  if (input.holds == TrialInput::Holds::kCodes) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }
  for (int64_t i = 0; i < period; ++i) {
    store_element(input.dtype, bytes.data(), i, element(input, i, random));
  }
  return bytes;
}

}  // namespace

TrialMemory::TrialMemory(std::shared_ptr<device::Device> device, std::vector<TrialInput> inputs,
                         std::vector<TrialOutput> outputs, std::shared_ptr<Redzones> redzones)
    : device_(std::move(device)),
      stream_(device_),
      redzones_(std::move(redzones)),
      spare_(device_, 16, "a tuner's question whether the device answers"),
      described_(std::move(inputs)),
      results_(std::move(outputs)) {
  for (size_t i = 0; i < described_.size(); ++i) {
    const size_t bytes = storage_bytes(described_[i].dtype, elements_of(described_[i].dims));
    inputs_.push_back(redzones_->make(bytes, fmt::format("input {}", i)));
    fill(i);
  }
  for (size_t i = 0; i < results_.size(); ++i) {
    const TrialOutput& output = results_[i];
    outputs_.push_back(output.in_place_of
                           ? inputs_[*output.in_place_of]
                           : redzones_->make(storage_bytes(output.dtype, elements_of(output.dims)),
                                             fmt::format("output {}", i)));
  }
}

void* TrialMemory::output(size_t index, std::span<const int64_t> dims) {
  if (!std::ranges::equal(dims, results_[index].dims)) {
    throw InternalError("an output of a trial has another shape than expected");
  }
  return outputs_[index].get();
}

void TrialMemory::fill(size_t input) {
  const std::vector<std::byte> begin = begin_of(described_[input], input);
  if (begin.empty()) return;
  const Address to = address_of(inputs_[input]);
  const size_t bytes = storage_bytes(described_[input].dtype, elements_of(described_[input].dims));
  stream_.copy(to, reinterpret_cast<Address>(begin.data()), begin.size());
  // The device repeats it: caches are gigabytes, and come anew before each plan runs.
  for (size_t done = begin.size(); done < bytes;) {
    const size_t more = std::min(done, bytes - done);
    stream_.copy(to + done, to, more);
    done += more;
  }
  stream_.synchronize();
}

void TrialMemory::reset() {
  constexpr unsigned char kPoison = 0xff;
  for (size_t i = 0; i < results_.size(); ++i) {
    const TrialOutput& output = results_[i];
    const size_t bytes = storage_bytes(output.dtype, elements_of(output.dims));
    if (output.in_place_of) {
      fill(*output.in_place_of);
    } else if (bytes > 0) {
      stream_.fill(address_of(outputs_[i]), kPoison, bytes);
    }
  }
}

std::vector<HostOutput> TrialMemory::read_outputs(size_t count) {
  std::vector<HostOutput> outputs;
  for (size_t i = 0; i < count; ++i) {
    HostOutput& output = outputs.emplace_back();
    output.dtype = results_[i].dtype;
    output.elements = elements_of(results_[i].dims);
    output.bytes.resize(storage_bytes(output.dtype, output.elements));
    if (output.bytes.empty()) continue;
    stream_.copy(reinterpret_cast<Address>(output.bytes.data()), address_of(outputs_[i]),
                 output.bytes.size());
  }
  stream_.synchronize();
  return outputs;
}

}  // namespace tenon::kernels
