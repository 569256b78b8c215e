#include <algorithm>
#include <array>
#include <cmath>
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
    case kDataInt32:
      return DType::kI32;
    case kDataFp8E4M3:
      return DType::kF8E4M3FN;
    case kDataFp8E5M2:
      return DType::kF8E5M2;
    case kDataFp8E8M0:
      return DType::kF8E8M0;
    case kDataFp4E2M1:
      return DType::kF4E2M1;
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
    if (operation.kind == kConvolutionBackwardData) return convolve_back(operation);
    if (operation.kind == kMatmulOperation) return multiply(operation);
    if (operation.kind == kReductionOperation) return reduce(operation);
    if (operation.kind == kBlockDequantize) return dequantize(operation);
    if (operation.kind == kPointwiseOperation) {
      return is_of_scores(operation) ? point_scores(operation) : point(operation);
    }
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

  // Calls fn(place of x, of w, of y) for every product of the convolution of x by w to y.
  template <typename Fn>
  static void for_each_product(const Object& form, const Ints& x, const Ints& w, const Ints& y,
                               const Fn& fn) {
    const Ints strides = form.list<int64_t>(kConvolutionStrides);
    const Ints pads = form.list<int64_t>(kConvolutionPadsBefore);
    const Ints dilations = form.list<int64_t>(kConvolutionDilations);
    const int64_t groups = x[1] / w[1], per_group = y[1] / groups;
    const Ints window(w.begin() + 1, w.end());  // channels first
    Ints place(y.size());
    do {
      Ints tap(window.size());
      do {
        Ints from{place[0], place[1] / per_group * w[1] + tap[0]}, weight{place[1]};
        weight.insert(weight.end(), tap.begin(), tap.end());
        bool inside = true;
        for (size_t i = 0; i < strides.size(); ++i) {
          from.push_back(place[2 + i] * strides[i] + tap[1 + i] * dilations[i] - pads[i]);
          inside = inside && from.back() >= 0 && from.back() < x[2 + i];
        }
        if (inside) fn(from, weight, place);
      } while (next(tap, window));
    } while (next(place, y));
  }

  void convolve(const Object& operation) {
    Values x = read(operation.object(kConvolutionX)), w = read(operation.object(kConvolutionW));
    Values y = result_of(operation.object(kConvolutionY));
    for_each_product(operation.object(kConvolutionDescriptor), x.dims, w.dims, y.dims,
                     [&](const Ints& from, const Ints& weight, const Ints& place) {
                       y.at(place) += x.at(from) * w.at(weight);
                     });
    write(operation.object(kConvolutionY), std::move(y));
  }

  // The real one takes no sizes that the convolution would not make of each other.
  static void require_sizes(const Object& form, const Ints& dx, const Ints& w, const Ints& dy) {
    const Ints strides = form.list<int64_t>(kConvolutionStrides);
    const Ints before = form.list<int64_t>(kConvolutionPadsBefore);
    const Ints after = form.list<int64_t>(kConvolutionPadsAfter);
    const Ints dilations = form.list<int64_t>(kConvolutionDilations);
    for (size_t i = 0; i < strides.size(); ++i) {
      const int64_t way = dx[2 + i] + before[i] + after[i] - dilations[i] * (w[2 + i] - 1) - 1;
      if (way / strides[i] + 1 != dy[2 + i]) throw std::invalid_argument("sizes of a gradient");
    }
  }

  void convolve_back(const Object& operation) {
    const Object& form = operation.object(kBackwardDataDescriptor);
    Values dy = read(operation.object(kBackwardDataDy)), w = read(operation.object(kBackwardDataW));
    Values dx = result_of(operation.object(kBackwardDataDx));
    require_sizes(form, dx.dims, w.dims, dy.dims);
    for_each_product(form, dx.dims, w.dims, dy.dims,
                     [&](const Ints& to, const Ints& weight, const Ints& place) {
                       dx.at(to) += dy.at(place) * w.at(weight);
                     });
    write(operation.object(kBackwardDataDx), std::move(dx));
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

  static PointwiseMode mode_of(const Object& operation) {
    return operation.object(kPointwiseDescriptor).one<PointwiseMode>(kPointwiseMode);
  }
  static bool is_of_scores(const Object& operation) {
    const PointwiseMode mode = mode_of(operation);
    return mode != kAdd && mode != kRelu;
  }

  static double pointed(PointwiseMode mode, double x, double b) {
    switch (mode) {
      case kMultiply:
        return x * b;
      case kDivide:
        return x / b;
      case kSubtract:
        return x - b;
      case kExp:
        return std::exp(x);
      case kLog:
        return std::log(x);
      case kGreater:
        return x > b ? 1 : 0;
      case kGreaterEqual:
        return x >= b ? 1 : 0;
      case kLess:
        return x < b ? 1 : 0;
      case kAnd:
        return x != 0 && b != 0 ? 1 : 0;
      default:
        throw std::invalid_argument("a mode of pointwise operations");
    }
  }

  void point_scores(const Object& operation) {
    const PointwiseMode mode = mode_of(operation);
    Values y = result_of(operation.object(kPointwiseY));
    const bool counts = mode == kIndex;
    Values x = counts ? Values{} : read(operation.object(kPointwiseX));
    Values b, t;
    if (operation.attributes.contains(kPointwiseB)) b = read(operation.object(kPointwiseB));
    if (mode == kSelect) t = read(operation.object(kPointwiseT));
    const int64_t axis =
        counts ? operation.object(kPointwiseDescriptor).one<int64_t>(kPointwiseAxis) : 0;
    Ints place(y.dims.size());
    do {
      double& element = y.at(place);
      if (counts) {
        element = static_cast<double>(place.at(axis));
      } else if (mode == kSelect) {
        element = t.at(place) != 0 ? x.at(place) : b.at(place);
      } else {
        element = pointed(mode, x.at(place), b.dims.empty() ? 0 : b.at(place));
      }
    } while (next(place, y.dims));
    write(operation.object(kPointwiseY), std::move(y));
  }

  // Of one batch row: what the tensor says, at most what there is.
  int64_t size_of(const Object& operation, int attribute, int64_t batch, int64_t most) {
    if (!operation.attributes.contains(attribute)) return most;
    const double said = read(operation.object(attribute)).at({batch, 0, 0, 0});
    return std::min(most, static_cast<int64_t>(said));
  }

  void multiply_matrices(const Object& operation, Values& a, Values& b, Values c) {
    Ints place(3);
    do {
      double sum = 0;
      for (int64_t k = 0; k < a.dims[2]; ++k) {
        sum += a.at({place[0], place[1], k}) * b.at({place[0], k, place[2]});
      }
      c.at(place) = sum;
    } while (next(place, c.dims));
    write(operation.object(kMatmulC), std::move(c));
  }

  void multiply(const Object& operation) {
    Values a = read(operation.object(kMatmulA)), b = read(operation.object(kMatmulB));
    Values c = result_of(operation.object(kMatmulC));
    if (a.dims.size() == 3) return multiply_matrices(operation, a, b, std::move(c));
    const int64_t group = a.dims.at(1) / b.dims.at(1);
    Ints place(4);
    do {
      const int64_t batch = place[0];
      const bool is_row = place[2] < size_of(operation, kMatmulRows, batch, c.dims[2]);
      const bool is_column = place[3] < size_of(operation, kMatmulColumns, batch, c.dims[3]);
      if (!is_row || !is_column) continue;
      double sum = 0;
      // Behind kMatmulDepth, too, as cuDNN 9.14 does: 0 times NaN is NaN.
      for (int64_t k = 0; k < a.dims[3]; ++k) {
        sum += a.at({batch, place[1], place[2], k}) * b.at({batch, place[1] / group, k, place[3]});
      }
      c.at(place) = sum;
    } while (next(place, c.dims));
    write(operation.object(kMatmulC), std::move(c));
  }

  // The scale of a row and a block, in tiles: [row / 128][block / 4][row % 32][row / 32 % 4][4].
  double scale_of(const Object& scales, int64_t batch, int64_t row, int64_t block, bool turned) {
    const Ints dims = scales.list<int64_t>(kTensorDims);
    const int64_t blocks = turned ? dims.at(1) : dims.at(2);
    int64_t at = batch * dims[1] * dims[2];
    at += row / 128 * 128 * blocks + block / 4 * 512 + row % 32 * 16 + row / 32 % 4 * 4 + block % 4;
    const DType dtype = dtype_of(scales);
    return tenon::decode(dtype, tenon::load_code(dtype, pointer(scales), at));
  }

  void dequantize(const Object& operation) {
    Values y = read(operation.object(kDequantizeX));
    const auto block = operation.list<int32_t>(kDequantizeBlock);
    const bool turned = block.at(0) != 1;
    Ints place(3);
    do {
      const int64_t row = turned ? place[2] : place[1], element = turned ? place[1] : place[2];
      y.at(place) *= scale_of(operation.object(kDequantizeScale), place[0], row,
                              element / block.at(turned ? 0 : 1), turned);
    } while (next(place, y.dims));
    write(operation.object(kDequantizeY), std::move(y));
  }

  void reduce(const Object& operation) {
    const bool sums = operation.object(kReductionDescriptor).one<int>(kReductionMode) == kSum;
    Values x = read(operation.object(kReductionX));
    Values y = result_of(operation.object(kReductionY));
    std::ranges::fill(y.data, sums ? 0 : -std::numeric_limits<double>::infinity());
    Ints place(x.dims.size());
    do {
      double& element = y.at(place);
      element = sums ? element + x.at(place) : std::max(element, x.at(place));
    } while (next(place, x.dims));
    write(operation.object(kReductionY), std::move(y));
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
