// Runs a model with Tenon from C++:
//
//   run_model <libonnxruntime.so> <libonnxruntime_ep_tenon.so> <model.onnx> [<option>=<value>...]
//
// Inputs are filled with ones, unknown dims are 1. Options are Tenon's: require_full_claim=1.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>
#include <unordered_map>

#include "runtime.h"

namespace {

using Options = std::unordered_map<std::string, std::string>;

Ort::Session open_session(Ort::Env& env, const char* plugin, const char* model,
                          const Options& wishes) {
  Ort::SessionOptions options;
  options.AppendExecutionProvider_V2(env, {register_tenon(env, plugin)}, wishes);
  return {env, model, options};
}

// What an element type calls one, and its first element as text.
struct ElementType {
  std::vector<uint8_t> one;
  std::function<std::string(const void*)> text;
};

std::string in_words(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

template <typename Number>
ElementType number() {
  const auto one = static_cast<Number>(1);
  ElementType type{std::vector<uint8_t>(sizeof one), {}};
  std::memcpy(type.one.data(), &one, sizeof one);
  type.text = [](const void* first) {
    return in_words(static_cast<double>(*static_cast<const Number*>(first)));
  };
  return type;
}

template <typename Half>
ElementType half() {
  const Half one(1.0F);
  ElementType type{std::vector<uint8_t>(sizeof one), {}};
  std::memcpy(type.one.data(), &one, sizeof one);
  type.text = [](const void* first) {
    return in_words(static_cast<const Half*>(first)->ToFloat());
  };
  return type;
}

// A byte of one 8-bit code or two of 4 bits, shown as it is.
ElementType code(uint8_t one) {
  return {{one}, [](const void* first) {
            return "code " + std::to_string(*static_cast<const uint8_t*>(first));
          }};
}

ElementType element_type(ONNXTensorElementDataType type) {
  static const std::unordered_map<int, ElementType> known = {
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, number<float>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, number<double>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, half<Ort::Float16_t>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, half<Ort::BFloat16_t>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, number<int8_t>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, number<int16_t>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, number<int32_t>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, number<int64_t>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, number<uint8_t>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, number<uint16_t>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, number<uint32_t>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, number<uint64_t>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, number<bool>()},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN, code(0x38)},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ, code(0x40)},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2, code(0x3c)},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ, code(0x40)},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4, code(0x11)},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4, code(0x11)},
      {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1, code(0x22)},
  };
  const auto found = known.find(type);
  if (found == known.end()) {
    throw std::runtime_error("no ones are known for element type " + std::to_string(type));
  }
  return found->second;
}

void fill_with_ones(Ort::Value& value, ONNXTensorElementDataType type) {
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    const size_t count = value.GetTensorTypeAndShapeInfo().GetElementCount();
    for (size_t i = 0; i < count; ++i) value.FillStringTensorElement("1", i);
    return;
  }
  const std::vector<uint8_t> one = element_type(type).one;
  auto* bytes = static_cast<uint8_t*>(value.GetTensorMutableRawData());
  const size_t size = value.GetTensorSizeInBytes();
  for (size_t i = 0; i < size; ++i) bytes[i] = one[i % one.size()];
}

Ort::Value ones(Ort::AllocatorWithDefaultOptions& allocator, const std::string& name,
                const Ort::TypeInfo& type) {
  if (type.GetONNXType() != ONNX_TYPE_TENSOR) {
    throw std::runtime_error("input '" + name + "' is no tensor, and this example feeds tensors");
  }
  const auto info = type.GetTensorTypeAndShapeInfo();
  std::vector<int64_t> dims = info.GetShape();
  for (int64_t& dim : dims) dim = dim < 0 ? 1 : dim;
  Ort::Value value =
      Ort::Value::CreateTensor(allocator, dims.data(), dims.size(), info.GetElementType());
  fill_with_ones(value, info.GetElementType());
  return value;
}

// "[ 1 32 ] starts with 0.5"
std::string in_words(const Ort::Value& value) {
  if (!value.IsTensor()) return "is no tensor";
  const auto info = value.GetTensorTypeAndShapeInfo();
  std::string text = "[";
  for (const int64_t dim : info.GetShape()) text += " " + std::to_string(dim);
  if (info.GetElementCount() == 0) return text + " ] is empty";
  const bool is_text = info.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
  return text + " ] starts with " +
         (is_text ? value.GetStringTensorElement(0)
                  : element_type(info.GetElementType()).text(value.GetTensorRawData()));
}

void run(Ort::Session& session) {
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<const char*> input_names, output_names;
  std::vector<Ort::Value> inputs;
  const std::vector<std::string> ins = session.GetInputNames(), outs = session.GetOutputNames();
  for (size_t i = 0; i < ins.size(); ++i) {
    input_names.push_back(ins[i].c_str());
    inputs.push_back(ones(allocator, ins[i], session.GetInputTypeInfo(i)));
  }
  for (const std::string& name : outs) output_names.push_back(name.c_str());
  const auto outputs = session.Run(Ort::RunOptions{}, input_names.data(), inputs.data(),
                                   inputs.size(), output_names.data(), output_names.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::printf("%s %s\n", output_names[i], in_words(outputs[i]).c_str());
  }
}

Options options_of(std::span<char*> arguments) {
  Options options;
  for (const std::string argument : arguments) {
    const size_t sign = argument.find('=');
    if (sign == std::string::npos) throw std::runtime_error("not key=value: " + argument);
    options[argument.substr(0, sign)] = argument.substr(sign + 1);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s LIBONNXRUNTIME PLUGIN MODEL [KEY=VALUE...]\n", argv[0]);
    return 2;
  }
  open_runtime(argv[1]);
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "example");
  const Options wishes = options_of(std::span(argv, static_cast<size_t>(argc)).subspan(4));
  Ort::Session session = open_session(env, argv[2], argv[3], wishes);
  run(session);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
