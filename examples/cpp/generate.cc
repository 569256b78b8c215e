// Generates tokens with a decoder in a folder as ONNX Runtime GenAI takes it:
//
//   generate <libonnxruntime.so> <libonnxruntime_ep_tenon.so> <folder> <1,2,3> [count] [key=value…]
//
// What follows are Tenon's options: with tensor_parallel_size=auto under torchrun, mpirun or srun
// each process is one rank, and the first of them prints.
//
// The likeliest token follows each time. Caches stay where the provider works: one buffer for past
// and present where the model allows it, else what a step wrote is what the next one reads.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <regex>
#include <sstream>
#include <thread>
#include <unordered_map>

#include "runtime.h"

namespace {

using Tokens = std::vector<int64_t>;

// ---- genai_config.json: a few values of it, wherever they stand.

struct Folder {
  std::string model, ids, mask, positions, logits, past_key, past_value, present_key, present_value;
  int64_t layers, kv_heads, head_size, context_length;
  Tokens window_layers = {};  // their caches hold a window only, from the first step on
  int64_t window_rows = 0;
  bool shares_cache;
  Tokens end_tokens;
};

std::optional<std::string> find(const std::string& json, const std::string& key,
                                const std::string& value) {
  std::smatch found;
  const std::regex wanted("\"" + key + "\"\\s*:\\s*" + value);
  if (!std::regex_search(json, found, wanted)) return std::nullopt;
  return found[1].str();
}

std::string text(const std::string& json, const char* key, const char* otherwise) {
  return find(json, key, "\"([^\"]*)\"").value_or(otherwise);
}

int64_t number(const std::string& json, const char* key) {
  const auto found = find(json, key, "([0-9]+)");
  if (!found)
    throw std::runtime_error("genai_config.json has no number '" + std::string(key) + "'");
  return std::stoll(*found);
}

Tokens numbers(const std::string& text) {
  Tokens result;
  const std::regex digits("[0-9]+");
  for (std::sregex_iterator it(text.begin(), text.end(), digits), end; it != end; ++it) {
    result.push_back(std::stoll(it->str()));
  }
  return result;
}

void read_windows(const std::string& json, Folder& folder) {
  if (!find(json, "slide_key_value_cache", "(false)")) return;
  folder.window_layers = numbers(find(json, "layers", "(\\[[^\\]]*\\])").value_or(""));
  const std::string slack = find(json, "cache_slack", "([0-9]+)").value_or("0");
  folder.window_rows = number(json, "window_size") + std::stoll(slack);
}

Folder read_folder(const std::filesystem::path& folder) {
  std::ifstream file(folder / "genai_config.json");
  if (!file) {
    throw std::runtime_error("there is no genai_config.json in " + folder.string() +
                             ": give a folder as ONNX Runtime GenAI's model builder writes it");
  }
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  const std::filesystem::path model = folder / text(json, "filename", "model.onnx");
  if (!std::filesystem::is_regular_file(model)) {
    throw std::runtime_error("genai_config.json names " + model.string() + ", which is not there");
  }
  Folder read = {
      .model = model.string(),
      .ids = text(json, "input_ids", "input_ids"),
      .mask = text(json, "attention_mask", "attention_mask"),
      .positions = text(json, "position_ids", "position_ids"),
      .logits = text(json, "logits", "logits"),
      .past_key = text(json, "past_key_names", "past_key_values.%d.key"),
      .past_value = text(json, "past_value_names", "past_key_values.%d.value"),
      .present_key = text(json, "present_key_names", "present.%d.key"),
      .present_value = text(json, "present_value_names", "present.%d.value"),
      .layers = number(json, "num_hidden_layers"),
      .kv_heads = number(json, "num_key_value_heads"),
      .head_size = number(json, "head_size"),
      .context_length = number(json, "context_length"),
      .shares_cache = find(json, "past_present_share_buffer", "(true)").has_value(),
      .end_tokens = numbers(find(json, "eos_token_id", "(\\[[^\\]]*\\]|[0-9]+)").value_or(""))};
  read_windows(json, read);
  return read;
}

std::string of_layer(std::string pattern, int64_t layer) {
  const size_t at = pattern.find("%d");
  if (at == std::string::npos) throw std::runtime_error("no %d in the cache's name " + pattern);
  return pattern.replace(at, 2, std::to_string(layer));
}

// ---- Ranks.

using Options = std::unordered_map<std::string, std::string>;

struct Ranks {
  int64_t rank = 0, size = 1;

  // Heads of a cache that this rank holds, as Tenon deals them.
  int64_t own(int64_t heads) const {
    if (heads < size) return 1;
    return heads / size + (rank < heads % size ? 1 : 0);
  }
};

// As the options say, else as the launcher does: torchrun, Open MPI, Slurm.
Ranks ranks_of(const Options& options) {
  const auto found = options.find("tensor_parallel_size");
  if (found == options.end() || found->second == "1") return {};
  const auto launched = [](std::initializer_list<const char*> names) -> int64_t {
    for (const char* name : names) {
      const char* value = std::getenv(name);
      if (value != nullptr && *value != 0) return std::stoll(value);
    }
    return 0;
  };
  Ranks ranks;
  const int64_t size = found->second != "auto" ? std::stoll(found->second)
                                               : launched({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE",
                                                           "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  ranks.size = std::max<int64_t>(1, size);  // auto without a launcher: alone
  const auto rank = options.find("tensor_parallel_rank");
  ranks.rank = rank != options.end() ? std::stoll(rank->second)
                                     : launched({"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"});
  return ranks;
}

// ---- The loop.

struct Declared {
  ONNXTensorElementDataType element;
  std::vector<int64_t> shape;        // -1: what symbols names
  std::vector<std::string> symbols;  // empty: a number
};

std::map<std::string, Declared> declared(const std::vector<std::string>& names, auto&& type_of) {
  std::map<std::string, Declared> result;
  for (size_t i = 0; i < names.size(); ++i) {
    const Ort::TypeInfo type = type_of(i);
    const auto info = type.GetTensorTypeAndShapeInfo();
    const std::vector<const char*> symbols = info.GetSymbolicDimensions();
    result[names[i]] = {info.GetElementType(), info.GetShape(), {symbols.begin(), symbols.end()}};
  }
  return result;
}

class TokenLoop {
 public:
  TokenLoop(Ort::Env& env, Ort::Session& session, const Ort::ConstEpDevice& device,
            const Folder& folder, int64_t max_length, Ranks ranks)
      : env_(env), session_(session), folder_(folder), max_length_(max_length), ranks_(ranks) {
    if (is_gpu(device)) {
      const auto memory = device.GetMemoryInfo(OrtDeviceMemoryType_DEFAULT);
      on_gpu_ = true;
      memory_ = memory;
      allocator_ = env.GetSharedAllocator(memory);
    } else {
      memory_ = host_.GetInfo();
      allocator_ = host_;
    }
    inputs_ =
        declared(session.GetInputNames(), [&](size_t i) { return session.GetInputTypeInfo(i); });
    outputs_ =
        declared(session.GetOutputNames(), [&](size_t i) { return session.GetOutputTypeInfo(i); });
    for (int64_t layer = 0; layer < folder.layers; ++layer) {
      const bool slides = std::ranges::count(folder.window_layers, layer) > 0;
      const int64_t rows = slides ? folder.window_rows : folder.shares_cache ? max_length : 0;
      add_cache(of_layer(folder.past_key, layer), of_layer(folder.present_key, layer), rows);
      add_cache(of_layer(folder.past_value, layer), of_layer(folder.present_value, layer), rows);
    }
  }

  int64_t length() const { return length_; }

  // Feeds tokens, answers the likeliest one to follow.
  int64_t step(const Tokens& ids) {
    const auto count = static_cast<int64_t>(ids.size());
    const int64_t total = length_ + count;
    if (total > max_length_) {
      throw std::runtime_error(std::to_string(total) + " tokens are more than the cache holds, " +
                               std::to_string(max_length_));
    }
    Ort::IoBinding binding(session_);
    feed(binding, folder_.ids, ids);
    // On a GPU a mask that keeps its length leaves shapes and addresses as they are from step to
    // step, so that one graph is replayed.
    const bool fixed = on_gpu_ && folder_.shares_cache;
    Tokens mask(static_cast<size_t>(fixed ? max_length_ : total), 0);
    std::fill_n(mask.begin(), total, 1);
    feed(binding, folder_.mask, mask);
    if (inputs_.contains(folder_.positions)) {
      Tokens positions(ids.size());
      std::iota(positions.begin(), positions.end(), length_);
      feed(binding, folder_.positions, positions);
    }
    const Ort::Value& logits = bind_outputs(binding, count);
    session_.Run(Ort::RunOptions{}, binding);
    if (!folder_.shares_cache) keep_grown_caches(binding);
    length_ = total;
    return likeliest(logits);
  }

 private:
  struct Cache {
    std::string past, present;
    Ort::Value value;
  };

  const Declared& expect(const std::map<std::string, Declared>& offered, const std::string& name) {
    const auto found = offered.find(name);
    if (found == offered.end()) {
      throw std::runtime_error(folder_.model + " has no " + name + ", which the config names");
    }
    return found->second;
  }

  void add_cache(std::string past, std::string present, int64_t rows) {
    const auto& [element, declared_shape, symbols] = expect(inputs_, past);
    expect(outputs_, present);
    std::vector<int64_t> shape = declared_shape;
    shape.at(0) = 1;
    if (shape.at(1) < 0) shape[1] = heads_in(symbols[1]);
    shape.at(2) = rows;
    if (shape.at(3) < 0) shape[3] = head_width(element);
    caches_.push_back({std::move(past), std::move(present), tensor(shape, element)});
  }

  // `tenon ranks` writes files in which ranks bind their own heads: kv_heads_of_8. Other names
  // stand for all heads.
  int64_t heads_in(const std::string& symbol) const {
    const std::string start = "kv_heads_of_";
    if (symbol.rfind(start, 0) != 0) return folder_.kv_heads;
    return ranks_.own(std::stoll(symbol.substr(start.size())));
  }

  // Elements of a cache that one head takes: bytes hold two codes of 4 bits.
  int64_t head_width(ONNXTensorElementDataType element) const {
    const bool packed = element == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
    return packed ? (folder_.head_size + 1) / 2 : folder_.head_size;
  }

  Ort::Value tensor(const std::vector<int64_t>& shape, ONNXTensorElementDataType element) {
    return Ort::Value::CreateTensor(allocator_, shape.data(), shape.size(), element);
  }

  // Tensors of the last step's shape are used again, so that they keep their addresses.
  Ort::Value& kept(const std::string& name, const std::vector<int64_t>& shape,
                   ONNXTensorElementDataType element) {
    const auto found = kept_.find(name);
    if (found != kept_.end() && found->second.GetTensorTypeAndShapeInfo().GetShape() == shape) {
      return found->second;
    }
    return kept_.insert_or_assign(name, tensor(shape, element)).first->second;
  }

  void feed(Ort::IoBinding& binding, const std::string& name, Tokens values) {
    const Declared& input = expect(inputs_, name);
    if (input.element != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {
      throw std::runtime_error(name + " should take int64, as GenAI's decoders do");
    }
    const std::vector<int64_t> shape = {1, static_cast<int64_t>(values.size())};
    Ort::Value& value = kept(name, shape, input.element);
    const auto given = Ort::Value::CreateTensor<int64_t>(host_.GetInfo(), values.data(),
                                                         values.size(), shape.data(), 2);
    copy(given, value);
    binding.BindInput(name.c_str(), value);
  }

  const Ort::Value& bind_outputs(Ort::IoBinding& binding, int64_t count) {
    for (const Cache& cache : caches_) {
      binding.BindInput(cache.past.c_str(), cache.value);
      if (folder_.shares_cache) {
        binding.BindOutput(cache.present.c_str(), cache.value);
      } else {
        binding.BindOutput(cache.present.c_str(), memory_);
      }
    }
    const auto& [element, shape, symbols] = expect(outputs_, folder_.logits);
    const int64_t rows = shape.at(1) == 1 ? 1 : count;
    const Ort::Value& logits = kept(folder_.logits, {1, rows, shape.at(2)}, element);
    binding.BindOutput(folder_.logits.c_str(), logits);
    return logits;
  }

  void keep_grown_caches(const Ort::IoBinding& binding) {
    std::vector<Ort::Value> values = binding.GetOutputValues();
    for (size_t i = 0; i < caches_.size(); ++i) caches_[i].value = std::move(values[i]);
  }

  void copy(const Ort::Value& from, Ort::Value& to) {
    if (on_gpu_) {
      const Ort::Status status = env_.CopyTensor(from, to, nullptr);
      if (!status.IsOK()) throw std::runtime_error(status.GetErrorMessage());
    } else {
      const size_t bytes = from.GetTensorSizeInBytes();
      std::copy_n(static_cast<const char*>(from.GetTensorRawData()), bytes,
                  static_cast<char*>(to.GetTensorMutableRawData()));
    }
  }

  int64_t likeliest(const Ort::Value& logits) {
    const auto info = logits.GetTensorTypeAndShapeInfo();
    const std::vector<int64_t> shape = info.GetShape();
    auto on_host =
        Ort::Value::CreateTensor(host_, shape.data(), shape.size(), info.GetElementType());
    copy(logits, on_host);
    switch (info.GetElementType()) {
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
        return largest<float>(on_host, shape, [](float x) { return x; });
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
        return largest<Ort::Float16_t>(on_host, shape, [](auto x) { return x.ToFloat(); });
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
        return largest<Ort::BFloat16_t>(on_host, shape, [](auto x) { return x.ToFloat(); });
      default:
        throw std::runtime_error("logits should be float32, float16 or bfloat16");
    }
  }

  template <typename T>
  static int64_t largest(const Ort::Value& logits, const std::vector<int64_t>& shape,
                         auto&& value) {
    const T* last = logits.GetTensorData<T>() + (shape[1] - 1) * shape[2];
    const auto smaller = [&](T a, T b) { return value(a) < value(b); };
    return std::max_element(last, last + shape[2], smaller) - last;
  }

  Ort::Env& env_;
  Ort::Session& session_;
  const Folder& folder_;
  const int64_t max_length_;
  const Ranks ranks_;
  int64_t length_ = 0;
  bool on_gpu_ = false;
  Ort::AllocatorWithDefaultOptions host_;
  const OrtMemoryInfo* memory_ = nullptr;
  OrtAllocator* allocator_ = nullptr;
  std::map<std::string, Declared> inputs_, outputs_;
  std::vector<Cache> caches_;  // in the order in which outputs are bound
  std::map<std::string, Ort::Value> kept_;
};

// ---- The program.

Ort::Session open_session(Ort::Env& env, const Ort::ConstEpDevice& device, const Folder& folder,
                          Options wishes, Ranks ranks) {
  Ort::SessionOptions options;
  if (is_gpu(device) && folder.shares_cache) wishes.emplace("enable_cuda_graph", "1");
  // Ranks on one host share its cores.
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  if (ranks.size > 1) {
    options.SetIntraOpNumThreads(static_cast<int>(std::max<int64_t>(1, cores / ranks.size)));
  }
  options.AppendExecutionProvider_V2(env, {device}, wishes);
  return {env, folder.model.c_str(), options};
}

void generate(TokenLoop& loop, const Folder& folder, Tokens feed, int64_t count, bool prints) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const size_t prompt = feed.size();
  const Clock::time_point begin = Clock::now();
  Clock::time_point first;
  double first_token = 0;
  int64_t made = 0;
  for (; made < count; ++made) {
    const int64_t token = loop.step(feed);
    if (made == 0) {
      first = Clock::now();
      first_token = since(begin);
    }
    if (std::find(folder.end_tokens.begin(), folder.end_tokens.end(), token) !=
        folder.end_tokens.end()) {
      break;
    }
    if (prints) std::printf("%lld ", static_cast<long long>(token));
    if (prints) std::fflush(stdout);
    feed = {token};
  }
  if (!prints) return;
  const double rate = made > 1 ? static_cast<double>(made - 1) / since(first) : 0;
  std::printf("\n");
  std::fprintf(stderr,
               "%lld tokens after a prompt of %zu: the first after %.1f ms, then %.1f tokens/s\n",
               static_cast<long long>(made), prompt, first_token * 1e3, rate);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s LIBONNXRUNTIME PLUGIN FOLDER TOKENS [COUNT] [KEY=VALUE...]\n",
                 argv[0]);
    return 2;
  }
  int64_t count = 128;
  Options options;
  for (int i = 5; i < argc; ++i) {
    const std::string given = argv[i];
    const size_t equals = given.find('=');
    if (equals != std::string::npos) {
      options[given.substr(0, equals)] = given.substr(equals + 1);
    } else {
      count = std::stoll(given);
    }
  }
  const Ranks ranks = ranks_of(options);
  const Folder folder = read_folder(argv[3]);
  const Tokens prompt = numbers(argv[4]);
  if (prompt.empty()) throw std::runtime_error("give at least one token id, such as 1,2,3");
  const int64_t wanted = static_cast<int64_t>(prompt.size()) + count;
  open_runtime(argv[1]);
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "example");
  const Ort::ConstEpDevice device = register_tenon(env, argv[2]);
  Ort::Session session = open_session(env, device, folder, options, ranks);
  TokenLoop loop(env, session, device, folder, std::min(wanted, folder.context_length), ranks);
  generate(loop, folder, prompt, count, ranks.rank == 0);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
