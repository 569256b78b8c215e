// Runs a model with Tenon from C++:
//
//   run_model <libonnxruntime.so> <libonnxruntime_ep_tenon.so> <model.onnx>
//
// Inputs are filled with ones, unknown dims are 1.
#include <cstdio>
#include <unordered_map>

#include "runtime.h"

namespace {

Ort::Session open_session(Ort::Env& env, const char* plugin, const char* model) {
  Ort::SessionOptions options;
  const std::unordered_map<std::string, std::string> wishes = {{"require_full_claim", "1"}};
  options.AppendExecutionProvider_V2(env, {register_tenon(env, plugin)}, wishes);
  return {env, model, options};
}

Ort::Value ones(Ort::AllocatorWithDefaultOptions& allocator, const Ort::TypeInfo& type) {
  const auto info = type.GetTensorTypeAndShapeInfo();
  if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
    throw std::runtime_error("this example feeds float32 inputs only");
  }
  std::vector<int64_t> dims = info.GetShape();
  for (int64_t& dim : dims) dim = std::max<int64_t>(dim, 1);
  auto value = Ort::Value::CreateTensor<float>(allocator, dims.data(), dims.size());
  std::fill_n(value.GetTensorMutableData<float>(),
              value.GetTensorTypeAndShapeInfo().GetElementCount(), 1.0F);
  return value;
}

void run(Ort::Session& session) {
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<const char*> input_names, output_names;
  std::vector<Ort::Value> inputs;
  const std::vector<std::string> ins = session.GetInputNames(), outs = session.GetOutputNames();
  for (size_t i = 0; i < ins.size(); ++i) {
    input_names.push_back(ins[i].c_str());
    inputs.push_back(ones(allocator, session.GetInputTypeInfo(i)));
  }
  for (const std::string& name : outs) output_names.push_back(name.c_str());
  const auto outputs = session.Run(Ort::RunOptions{}, input_names.data(), inputs.data(),
                                   inputs.size(), output_names.data(), output_names.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::printf("%s [", output_names[i]);
    for (const int64_t dim : outputs[i].GetTensorTypeAndShapeInfo().GetShape()) {
      std::printf(" %ld", static_cast<long>(dim));
    }
    std::printf(" ] starts with %g\n", outputs[i].GetTensorData<float>()[0]);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s LIBONNXRUNTIME PLUGIN MODEL\n", argv[0]);
    return 2;
  }
  open_runtime(argv[1]);
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "example");
  Ort::Session session = open_session(env, argv[2], argv[3]);
  run(session);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
