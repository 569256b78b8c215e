#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <stdexcept>

#include "base/convert.h"
#include "base/dtype.h"
#include "tests/kernels/cudnn/stub/objects.h"

namespace stub_cudnn {
namespace {

using namespace tenon::cudnn;
using tenon::DType;
using Ints = std::vector<int64_t>;

int64_t count(const Ints& dims) {
  int64_t product = 1;
  for (const int64_t dim : dims) product *= dim;
  return product;
}

// Places in a box of `dims`, the last innermost; false after the last one.
bool next(Ints& place, const Ints& dims) {
  for (size_t i = dims.size(); i-- > 0;) {
    if (++place[i] < dims[i]) return true;
    place[i] = 0;
  }
  return false;
}

struct Values {
  Ints dims;
  std::vector<double> data;

  double& at(const Ints& place) {
    int64_t index = 0;
    for (size_t i = 0; i < dims.size(); ++i)
      index = index * dims[i] + (dims[i] == 1 ? 0 : place[i]);
    return data.at(static_cast<size_t>(index));
  }
};

DType dtype_of(const Object& tensor) {
  switch (tensor.one<int>(kTensorDataType)) {
    case kDataFloat:
      return DType::kF32;
    case kDataHalf:
      return DType::kF16;
    default:
      return DType::kBF16;
  }
}

class Computation {
 public:
  explicit Computation(const Object& pack)
      : ids_(pack.list<int64_t>(kPackIds)), pointers_(pack.list<void*>(kPackPointers)) {}

  void run(const Object& operation) {
    if (operation.kind == kConvolutionForward) return convolve(operation);
    if (operation.kind == kPointwiseOperation) return point(operation);
    pool(operation);
  }

 private:
  void* pointer(const Object& tensor) const {
    const auto found = std::ranges::find(ids_, tensor.one<int64_t>(kTensorId));
    return found == ids_.end() ? nullptr : pointers_.at(found - ids_.begin());
  }

  Values read(const Object& tensor) {
    const auto kept = virtuals_.find(&tensor);
    if (kept != virtuals_.end()) return kept->second;
    Values values = result_of(tensor);
    const DType dtype = dtype_of(tensor);
    for_each_stored(tensor, [&](const Ints& place, int64_t stored) {
      values.at(place) = tenon::decode(dtype, tenon::load_code(dtype, pointer(tensor), stored));
    });
    return values;
  }

  void write(const Object& tensor, Values values) {
    void* to = pointer(tensor);
    if (to == nullptr) {
      virtuals_[&tensor] = std::move(values);
      return;
    }
    const DType dtype = dtype_of(tensor);
    for_each_stored(tensor, [&](const Ints& place, int64_t stored) {
      tenon::store_code(dtype, to, stored, tenon::encode(dtype, values.at(place)));
    });
  }

  // Calls fn(place, how many elements it stands behind the first).
  template <typename Fn>
  static void for_each_stored(const Object& tensor, const Fn& fn) {
    const Ints dims = tensor.list<int64_t>(kTensorDims);
    const Ints strides = tensor.list<int64_t>(kTensorStrides);
    Ints place(dims.size());
    do {
      int64_t stored = 0;
      for (size_t i = 0; i < dims.size(); ++i) stored += place[i] * strides.at(i);
      fn(place, stored);
    } while (next(place, dims));
  }

  static Values result_of(const Object& tensor) {
    Values values{tensor.list<int64_t>(kTensorDims), {}};
    values.data.resize(static_cast<size_t>(count(values.dims)));
    return values;
  }

  void convolve(const Object& operation) {
    const Object& form = operation.object(kConvolutionDescriptor);
    const Ints strides = form.list<int64_t>(kConvolutionStrides);
    const Ints pads = form.list<int64_t>(kConvolutionPadsBefore);
    const Ints dilations = form.list<int64_t>(kConvolutionDilations);
    Values x = read(operation.object(kConvolutionX)), w = read(operation.object(kConvolutionW));
    Values y = result_of(operation.object(kConvolutionY));
    const int64_t groups = x.dims[1] / w.dims[1], per_group = y.dims[1] / groups;
    const Ints window(w.dims.begin() + 1, w.dims.end());  // channels first
    Ints place(y.dims.size());
    do {
      double sum = 0;
      Ints tap(window.size());
      do {
        Ints from{place[0], place[1] / per_group * w.dims[1] + tap[0]}, weight{place[1]};
        weight.insert(weight.end(), tap.begin(), tap.end());
        bool inside = true;
        for (size_t i = 0; i < strides.size(); ++i) {
          from.push_back(place[2 + i] * strides[i] + tap[1 + i] * dilations[i] - pads[i]);
          inside = inside && from.back() >= 0 && from.back() < x.dims[2 + i];
        }
        if (inside) sum += x.at(from) * w.at(weight);
      } while (next(tap, window));
      y.at(place) = sum;
    } while (next(place, y.dims));
    write(operation.object(kConvolutionY), std::move(y));
  }

  void point(const Object& operation) {
    const bool adds = operation.object(kPointwiseDescriptor).one<int>(kPointwiseMode) == kAdd;
    Values y = read(operation.object(kPointwiseX));
    Ints place(y.dims.size());
    Values b = adds ? read(operation.object(kPointwiseB)) : Values{};
    do {
      double& element = y.at(place);
      element = adds ? element + b.at(place) : std::max(element, 0.0);
    } while (next(place, y.dims));
    write(operation.object(kPointwiseY), std::move(y));
  }

  static Ints wholes(const Object& form, int attribute) {
    Ints numbers;
    for (const auto& [numerator, denominator] : form.list<std::array<int64_t, 2>>(attribute)) {
      if (denominator != 1) throw std::invalid_argument("a fraction");
      numbers.push_back(numerator);
    }
    return numbers;
  }

  void pool(const Object& operation) {
    const Object& form = operation.object(kResampleDescriptor);
    const Ints strides = wholes(form, kResampleStrides), window = wholes(form, kResampleWindow);
    const Ints pads = wholes(form, kResamplePadsBefore);
    const int mode = form.one<int>(kResampleMode);
    Values x = read(operation.object(kResampleX)), y = result_of(operation.object(kResampleY));
    Ints place(y.dims.size());
    do {
      double sum = 0, most = -std::numeric_limits<double>::infinity();
      int64_t inside_count = 0;
      Ints tap(window.size());
      do {
        Ints from{place[0], place[1]};
        bool inside = true;
        for (size_t i = 0; i < strides.size(); ++i) {
          from.push_back(place[2 + i] * strides[i] + tap[i] - pads[i]);
          inside = inside && from.back() >= 0 && from.back() < x.dims[2 + i];
        }
        if (!inside) continue;
        ++inside_count;
        sum += x.at(from);
        most = std::max(most, x.at(from));
      } while (next(tap, window));
      const int64_t divisor = mode == kAverageWithPads ? count(window) : inside_count;
      y.at(place) = mode == kMaximum ? most : sum / static_cast<double>(divisor);
    } while (next(place, y.dims));
    write(operation.object(kResampleY), std::move(y));
  }

  const Ints ids_;
  const std::vector<void*> pointers_;
  std::map<const Object*, Values> virtuals_;
};

}  // namespace

void compute(const Object& operation_graph, const Object& pack) {
  Computation computation(pack);
  for (const Object* operation : operation_graph.list<const Object*>(kGraphOperations)) {
    computation.run(*operation);
  }
}

}  // namespace stub_cudnn
