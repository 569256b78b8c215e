#include "parsers.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "base/dtype.h"
#include "base/error.h"
#include "base/shape.h"
#include "codegen/gpu_code_bytes.h"
#include "codegen/tile/text.h"
#include "codegen/tile/verify.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"
#include "kernels/device/description.h"
#include "provider/compatibility.h"
#include "provider/options.h"
#include "provider/saved_partition.h"

namespace tenon::fuzz {
namespace {

// What a value prints must parse, to a value that prints the same.
template <typename Parse, typename Print>
void round_trip(std::string_view text, const Parse& parse, const Print& print) {
  const std::string printed = print(parse(text));
  std::string again;
  try {
    again = print(parse(printed));
  } catch (const UserError& error) {
    throw InternalError("'" + printed + "' was printed and does not parse: " + error.what());
  }
  if (again != printed) {
    throw InternalError("'" + printed + "' is '" + again + "' once it was parsed");
  }
}

void take_graph(std::string_view text) {
  round_trip(text, ir::parse, [](const ir::Graph& graph) {
    (void)verify(graph);
    return print(graph);
  });
}

void take_kernel(std::string_view text) {
  round_trip(text, codegen::parse, [](const codegen::Kernel& kernel) {
    (void)verify(kernel);
    return print(kernel);
  });
}

void take_shape(std::string_view text) {
  round_trip(text, parse_shape, [](const Shape& shape) { return tenon::text(shape); });
}

void take_dim(std::string_view text) {
  (void)parse_dtype(text);
  round_trip(text, Dim::parse, [](const Dim& dim) { return dim.text(); });
}

void take_description(std::string_view text) {
  round_trip(text, device::parse_description,
             [](const device::Description& description) { return description.text(); });
}

// key=value, one a line.
void take_options(std::string_view text) {
  std::map<std::string, std::string> entries;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const size_t equals = line.find('=');
    entries[std::string(line.substr(0, equals))] =
        equals == line.npos ? "" : std::string(line.substr(equals + 1));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  (void)provider::gpu_only(provider::parse_options(entries));
}

void take_gpu_code(std::string_view bytes) {
  round_trip(bytes, codegen::gpu_code_from_bytes,
             [](const codegen::GpuCode& code) { return codegen::to_bytes(code); });
}

void take_context_origin(std::string_view text) {
  round_trip(text, provider::parse_context_origin,
             [](const provider::ContextOrigin& origin) { return origin.text(); });
}

void take_saved_partition(std::string_view bytes) {
  round_trip(bytes, provider::parse_saved_partition,
             [](const provider::SavedPartition& partition) { return to_bytes(partition); });
}

std::string contents_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Pieces that begin with `opening` at the start of a line and end with a closing brace at the start
// of one.
std::vector<std::string> blocks(const std::string& text, const std::string& opening) {
  std::vector<std::string> found;
  for (size_t at = text.find(opening); at != text.npos; at = text.find(opening, at + 1)) {
    if (const size_t end = text.find("\n}", at); end != text.npos) {
      found.push_back(text.substr(at, end + 3 - at));
    }
  }
  return found;
}

std::vector<std::string> graph_seeds(const std::string& root) {
  std::vector<std::string> seeds;
  for (const char* name : {"infer_shapes", "match_scaled_dot", "fuse_loops", "match_attention"}) {
    for (std::string& block :
         blocks(contents_of(root + "/tests/golden/" + name + ".txt"), "graph ")) {
      seeds.push_back(std::move(block));
    }
  }
  return seeds;
}

std::vector<std::string> kernel_seeds(const std::string& root) {
  std::vector<std::string> seeds;
  for (const char* name : {"tile/text_test.cc", "interpret_test.cc", "compile_test.cc"}) {
    for (std::string& block : blocks(contents_of(root + "/tests/codegen/" + name), "kernel @")) {
      seeds.push_back(std::move(block));
    }
  }
  return seeds;
}

std::vector<std::string> shape_seeds(const std::string&) {
  return {"[batch,128,384]", "[]", "[2*batch*seq+1,floordiv(seq,16)]", "['past + 1',0,-1]"};
}

std::vector<std::string> dim_seeds(const std::string&) {
  return {"384",
          "batch",
          "2*batch*seq+1",
          "floordiv(seq,16)",
          "'past + 1'",
          "f8e4m3fn",
          "max(a,b)+min(a,2)",
          "-9223372036854775808",
          "9223372036854775807*n"};
}

std::vector<std::string> description_seeds(const std::string& root) {
  return {contents_of(root + "/kernels/device/specs/sm_90a.txt"),
          contents_of(root + "/kernels/device/specs/sm_80.txt")};
}

std::vector<std::string> option_seeds(const std::string&) {
  return {"claim=all\nprecision_mode=int8\ndump_dir=/nowhere",
          "exclude_ops=Softmax,com.microsoft::MatMulNBits\nmemory_limit=123\ndevice_id=0",
          "cache_dir=/nowhere\ncache_size_mb=7",
          "user_compute_stream=0x7f00\nhas_user_compute_stream=1\nrun_deadline_ms=5"};
}

std::vector<std::string> gpu_code_seeds(const std::string&) {
  codegen::GpuCode code{"kernel", ".version 8.0\n", 256, 49152, {}, true};
  std::vector<std::string> seeds = {codegen::to_bytes(code)};
  codegen::TmaDescriptor descriptor;
  descriptor.dtype = DType::kF16;
  descriptor.rows = {1, 0};
  descriptor.columns = {-1, 4096};
  descriptor.box_rows = 64;
  descriptor.box_columns = 128;
  code.tma_descriptors = {descriptor, descriptor};
  seeds.push_back(codegen::to_bytes(code));
  return seeds;
}

std::vector<std::string> context_origin_seeds(const std::string&) {
  return {"tenon-context-1;version=0.1.0;targets=sm_90a,sm_100a;features=;linker=13.0",
          "tenon-context-1;version=0.1.0;targets=x86_64;features=avx2,fma;linker="};
}

std::vector<std::string> saved_partition_seeds(const std::string&) {
  provider::SavedPartition partition;
  partition.inputs = {2, 0};
  partition.outputs = {1};
  partition.node_names = {"first", "second"};
  return {to_bytes(partition), to_bytes(provider::SavedPartition{})};
}

constexpr Parser kParsers[] = {
    {"graph_text", take_graph, graph_seeds},
    {"tile_text", take_kernel, kernel_seeds},
    {"shape_text", take_shape, shape_seeds},
    {"dim_text", take_dim, dim_seeds},
    {"device_description", take_description, description_seeds},
    {"options", take_options, option_seeds},
    {"gpu_code", take_gpu_code, gpu_code_seeds},
    {"context_origin", take_context_origin, context_origin_seeds},
    {"saved_partition", take_saved_partition, saved_partition_seeds},
};

}  // namespace

std::span<const Parser> parsers() { return kParsers; }

const Parser& parser(std::string_view name) {
  for (const Parser& candidate : kParsers) {
    if (candidate.name == name) return candidate;
  }
  throw UserError("no parser is called " + std::string(name));
}

}  // namespace tenon::fuzz
