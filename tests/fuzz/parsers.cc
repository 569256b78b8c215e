#include "parsers.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "base/byte_form.h"
#include "base/context_file.h"
#include "base/context_form.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/shape.h"
#include "codegen/compile.h"
#include "codegen/gpu_code_bytes.h"
#include "codegen/interpret.h"
#include "codegen/tile/text.h"
#include "codegen/tile/verify.h"
#include "distributed/rendezvous/fingerprint.h"
#include "distributed/rendezvous/store_message.h"
#include "distributed/sharding/annotations.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"
#include "kernels/autotune/tuning_file.h"
#include "kernels/check_program.h"
#include "kernels/cudnn/graph_call.h"
#include "kernels/device/description.h"
#include "kernels/outside_weights.h"
#include "kernels/program_bytes.h"
#include "kernels/saved_target.h"
#include "provider/compatibility.h"
#include "provider/options.h"
#include "provider/saved_partition.h"
#include "tests/distributed/sharding/annotated_model.h"

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

// What verifies compiles: nothing in it is looked at again before code is made of it.
void take_compiled_kernel(std::string_view text) {
  const codegen::Kernel kernel = codegen::parse(text);
  if (codegen::needs_interpreter(kernel)) return;
    // A build holds the code generator of its own processors.
#if defined(__aarch64__)
  constexpr const char* kTargets[] = {"aarch64-neon", "aarch64-i8mm"};
#else
  constexpr const char* kTargets[] = {"x86_64-avx2", "x86_64-amx"};
#endif
  for (const char* target : kTargets) {
    (void)codegen::compile_to_text(kernel, codegen::host_target(target), "llvm");
  }
}

void take_store_message(std::string_view bytes) {
  round_trip(bytes, distributed::decode,
             [](const distributed::StoreMessage& message) { return distributed::encode(message); });
}

void take_fingerprint(std::string_view bytes) {
  round_trip(bytes, distributed::decode_fingerprint,
             [](const distributed::Fingerprint& fingerprint) {
               (void)distributed::difference({fingerprint, distributed::Fingerprint{}});
               return distributed::encode(fingerprint);
             });
}

void take_tuning_file(std::string_view text) {
  round_trip(text, kernels::TuningFile::parse,
             [](const kernels::TuningFile& file) { return file.print(); });
}

// A whole model file.
void take_annotations(std::string_view bytes) {
  for (const int64_t ranks : {2, 4}) {
    (void)distributed::read_annotations(std::as_bytes(std::span(bytes)), ranks);
  }
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

// As the table of sections of a file whose digests are right: what a bit that flipped never gets
// to.
void take_context(std::string_view table) {
  const ContextHead head{ContextHead::kBytes + table.size(), ContextHead::kBytes, table.size(),
                         sha256(table)};
  const auto file = ContextFile::from_bytes(head.to_bytes().append(table));
  for (const std::string_view name : file->names()) {
    if (!file->has_data(name)) (void)file->section(name);
  }
}

void take_program(std::string_view bytes) {
  round_trip(bytes, kernels::program_from_bytes, [](const kernels::ProgramFromBytes& read) {
    try {
      kernels::check_program(read.program, true, false);
    } catch (const UserError&) {
      // Refused, as it should be: it is written all the same.
    }
    return kernels::to_bytes(read.program, false);
  });
}

void take_saved_target(std::string_view bytes) {
  round_trip(bytes, kernels::SavedTarget::from_bytes,
             [](const kernels::SavedTarget& target) { return target.to_bytes(); });
}

void take_outside_weights(std::string_view bytes) {
  round_trip(bytes, kernels::OutsideWeights::from_bytes,
             [](const kernels::OutsideWeights& weights) { return weights.to_bytes(); });
}

// As a context's graph is read: constants are found by their digests, or are not there.
void take_graph_with_constants(std::string_view text) {
  const std::vector<std::byte> bytes(4096);
  const ir::Graph graph =
      ir::parse_with_constants(text, [&](std::string_view digest, size_t count) {
        if (count > bytes.size()) throw UserError("no constant " + std::string(digest));
        return std::span(bytes).first(count);
      });
  (void)verify(graph);
  (void)print(graph);
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

// Those that a host compiles, of every skeleton.
std::vector<std::string> host_kernel_seeds(const std::string& root) {
  std::vector<std::string> seeds;
  for (const auto& file : std::filesystem::directory_iterator(root + "/tests/golden/tiles")) {
    if (!file.path().filename().string().starts_with("host_")) continue;
    for (std::string& block : blocks(contents_of(file.path()), "kernel @")) {
      seeds.push_back(std::move(block));
    }
  }
  std::ranges::sort(seeds);  // folders have no order
  return seeds;
}

std::vector<std::string> store_message_seeds(const std::string&) {
  using Kind = distributed::StoreMessage::Kind;
  return {distributed::encode({.kind = Kind::kJoin, .rank = 1, .size = 4, .value = "pid 1 on a"}),
          distributed::encode({.kind = Kind::kPost, .rank = 2, .key = "id", .value = "bytes"}),
          distributed::encode({.kind = Kind::kBeat})};
}

std::vector<std::string> fingerprint_seeds(const std::string&) {
  return {distributed::encode(distributed::fingerprint({.model = "sha256 5e21",
                                                        .options = "precision_mode=exact",
                                                        .build = "b1",
                                                        .ranks = 4,
                                                        .engine = "loopback"}))};
}

std::vector<std::string> tuning_seeds(const std::string&) {
  kernels::TuningRecord record;
  record.fingerprint = "0123456789abcdef0123456789abcdef";
  record.rows = {1, 8};
  record.machine = {"sm_90a", 132, 1980, "NVIDIA H200", "0.1.0", "13000", ""};
  record.kernel = {"pipelined", {kernels::Skeleton::kGemm, {{kernels::Knob::kTileM, 128}}}};
  record.microseconds = 1.5;
  kernels::TuningFile file;
  file.merge({record});
  return {file.print(), "record { machine < arch: 'a\\101' > new: [1, X] }"};
}

std::vector<std::string> annotation_seeds(const std::string&) {
  using testing::node, testing::spec, testing::with;
  testing::Message shared = spec("w", 0, 0, {-1});
  shared.message(3, testing::group(-1, {0, 1}));
  return {testing::model({node("dq", "DequantizeLinear", {"codes", "scales"}, "w"),
                          with(node("p", "MatMul", {"x", "w"}, "y"),
                               {spec("w", 1, 2, {0, 1}), spec("y", -1, 2), shared})},
                         {{"all", 2}, {"more", 4}})};
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
  return {"tenon-context-2;version=0.1.0;targets=sm_90a,sm_100a;features=;machine_code=12 of 14",
          "tenon-context-2;version=0.1.0;targets=x86_64;features=avx2,fma;machine_code=",
          "tenon-context-2;version=0.1.0;targets=sm_80;machine_code=1 of "
          "1;weights=outside;cudnn=9.19.0"};
}

std::vector<std::string> saved_partition_seeds(const std::string&) {
  provider::SavedPartition partition;
  partition.inputs = {{2, {DType::kF32, {{provider::DeclaredTensor::kOpen, 64}}}},
                      {0, {DType::kU8}}};
  partition.outputs = {{1, {DType::kI64}}};
  partition.node_names = {"first", "second"};
  return {to_bytes(partition), to_bytes(provider::SavedPartition{})};
}

std::vector<std::string> context_seeds(const std::string&) {
  ByteWriter table;
  table.number(uint64_t{2});
  for (const char* name : {"graph", "head"}) {
    table.text(name);
    table.number(uint8_t{0});
    table.number(uint64_t{128});
    table.number(uint64_t{0});
    table.bytes(ContextHead::text_of(sha256("")));
  }
  return {table.take(), std::string(8, '\0')};
}

// From slot 0 to 4, with a workspace behind it.
kernels::CompiledLaunch call_of(cudnn::Problem problem, const Dim& size) {
  cudnn::Rules rules;
  rules.wanted = cudnn::EngineChoice{1, 2};
  kernels::CompiledLaunch launch;
  launch.kind = kernels::LaunchKind::kLibraryCall;
  launch.call = std::make_shared<const cudnn::GraphCall>(nullptr, -1, std::move(problem), rules);
  const kernels::CallForm form = launch.call->form();
  launch.slots.assign(form.buffers, 0);
  launch.slots[form.buffers - 2] = 4;
  launch.slots.back() = 4;
  launch.indices.assign(form.numbers, size);
  launch.is_buffer.assign(form.buffers, true);
  launch.is_buffer.resize(form.buffers + form.numbers, false);
  launch.tasks = 1;
  launch.node = "node";
  return launch;
}

std::vector<cudnn::Problem> problems() {
  const cudnn::WindowForm window{{3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}};
  cudnn::Convolution convolution;
  convolution.dtype = DType::kF16;
  convolution.filter = {8, 8, 3, 3};
  convolution.window = window;
  convolution.has_bias = convolution.channels_last = true;
  cudnn::Sdpa attention;
  attention.dtype = DType::kBF16;
  attention.heads = attention.kv_heads = 4;
  attention.depth = attention.value_depth = 64;
  cudnn::WeightDot dot;
  dot.dot = {DType::kF8E4M3FN, DType::kF8E4M3FN, DType::kF8E8M0, 32, DType::kF32, true};
  dot.n = dot.k = 64;
  return {convolution, cudnn::Pooling{DType::kF32, cudnn::kMaximum, window}, attention, dot};
}

// One launch of everything that a program can hold.
std::vector<std::string> program_seeds(const std::string&) {
  using kernels::Slot;
  const Dim n = Dim::symbol("n");
  const std::vector<kernels::ProgramInput> inputs = {
      {"x", Shape{n, 64}, DType::kF32},
      {"i", Shape{n}, DType::kI64},
      {"s", Shape{2}, DType::kI64, std::vector<Dim>{n, Dim::symbol("total")}}};
  kernels::Program program{kernels::SymbolBinding(inputs)};
  program.inputs = inputs;
  program.outputs = {{Shape{n, 64}, DType::kF32}};
  program.slots = {{Slot::Kind::kInput, 0, {}, n * Dim(256), 0, 0, "x"},
                   {Slot::Kind::kInput, 1, {}, n * Dim(8), 0, 0, "i"},
                   {Slot::Kind::kOutput, 0, {}, n * Dim(256), 0, 0, "y"},
                   {Slot::Kind::kConstant, 0, {}, 256, 0, 0, "c"},
                   {Slot::Kind::kArena, 0, {}, n * Dim(256), 0, 1, "a"},
                   {Slot::Kind::kCounters, 0, {}, 4, 0, 0, "counters"},
                   {Slot::Kind::kArena, 0, {}, 16, 0, 1, "shape"}};
  program.output_slots = {2};
  kernels::CompiledLaunch launch;
  launch.threads = 128;
  launch.is_buffer = {true, true, true, false};
  launch.slots = {0, 3, 4};
  launch.fetched = {{0, n * Dim(256)}};
  launch.indices = {n};
  launch.tasks = ceil_div(n, Dim(16));
  launch.checks = {{1, DType::kI64, n, {ir::kNoValue, n, 0, 1, true, 0, "node"}}};
  launch.elidable_copy = kernels::SharedBuffers{0, 2, n, n};
  launch.in_place = {{0, 2}};
  launch.node = "node";
  kernels::CompiledLaunch copy;
  copy.kind = kernels::LaunchKind::kCopy;
  copy.copy_bytes = n * Dim(256);
  copy.is_buffer = {true, true};
  copy.slots = {4, 2};
  copy.tasks = 1;
  program.launches = {launch, copy};
  for (const cudnn::Problem& problem : problems()) {
    program.launches.push_back(call_of(problem, n * Dim(256)));
  }
  program.dependencies = {
      {{"k", "node", codegen::Pdl::Wait::kLate, true, {{0, true}, {4, false, true}}},
       {"copy", "y", codegen::Pdl::Wait::kNone, true, {{4, true}}}},
      {{0, 2}}};
  program.dependencies.launches().resize(
      program.launches.size(),
      {"call", "node", codegen::Pdl::Wait::kNone, true, {{0, true}, {4, false, true}}});
  program.size_checks = {{n, ir::Relation::kAtMost, 128, "node", {3}}};
  program.shape_writes = {{6, DType::kI64, {n, 64}}};
  program.kernels = {{"k"}};
  kernels::FusionReport fusion{"f", "tenon::Loop", "problem", {1, 2}, "loop", {{"loop", {}}}};
  fusion.configs = {
      {"rows <= 8", {{kernels::Skeleton::kGemm, {{kernels::Knob::kTileM, 64}}}, 1.5}, {}}};
  fusion.launches = {{"k", "neon", 4, 8, 100, {{1, 2, 3, 0.5}}}};
  program.fusions = {fusion};
  return {kernels::to_bytes(program, false)};
}

std::vector<std::string> saved_target_seeds(const std::string&) {
  kernels::Settings settings;
  settings.host = codegen::host_target("aarch64-neon");
  std::vector<std::string> seeds = {kernels::SavedTarget::of(settings).to_bytes()};
  settings.gpu = codegen::GpuTarget{};
  kernels::SavedTarget target = kernels::SavedTarget::of(settings);
  target.cudnn = 91900;
  seeds.push_back(target.to_bytes());
  return seeds;
}

std::vector<std::string> outside_weights_seeds(const std::string&) {
  kernels::OutsideWeights weights;
  weights.threads = 8;
  weights.files = {"w.data", "below/w.data"};
  weights.weights = {{hex(sha256("")), 1, 4096, 300, {sha256("")}},
                     {hex(sha256("a")), 0, 0, kContextChunkBytes + 1, {sha256("a"), sha256("b")}}};
  weights.packed = {{3, sha256("c")}};
  return {weights.to_bytes(), kernels::OutsideWeights{}.to_bytes()};
}

std::vector<std::string> constant_seeds(const std::string&) {
  return {"graph g {\n  input %x: f32[b,64]\n  const %w: f32[64] = sha256:" + hex(sha256("")) +
          " bytes:256\n  %y: f32[b,64] = Add@14(%x, %w)\n  output %y\n}\n"};
}

bool belongs_to_number(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '-';
}

constexpr Parser kParsers[] = {
    {"graph_text", take_graph, graph_seeds},
    {"tile_text", take_kernel, kernel_seeds},
    {"compiled_kernel", take_compiled_kernel, host_kernel_seeds, 5000},
    {"shape_text", take_shape, shape_seeds},
    {"dim_text", take_dim, dim_seeds},
    {"device_description", take_description, description_seeds},
    {"options", take_options, option_seeds},
    {"gpu_code", take_gpu_code, gpu_code_seeds},
    {"context_table", take_context, context_seeds},
    {"saved_program", take_program, program_seeds},
    {"saved_target", take_saved_target, saved_target_seeds},
    {"context_origin", take_context_origin, context_origin_seeds},
    {"saved_partition", take_saved_partition, saved_partition_seeds},
    {"outside_weights", take_outside_weights, outside_weights_seeds},
    {"graph_with_constants", take_graph_with_constants, constant_seeds},
    {"store_message", take_store_message, store_message_seeds},
    {"fingerprint", take_fingerprint, fingerprint_seeds},
    {"annotations", take_annotations, annotation_seeds},
    {"tuning_file", take_tuning_file, tuning_seeds},
};

}  // namespace

std::span<const Parser> parsers() { return kParsers; }

std::string with_another_number(std::string text, uint64_t random) {
  static constexpr std::string_view kNumbers[] = {"0",
                                                  "1",
                                                  "-1",
                                                  "2",
                                                  "16",
                                                  "2147483647",
                                                  "2147483648",
                                                  "4294967295",
                                                  "4611686018427387904",
                                                  "9223372036854775807",
                                                  "9223372036854775800",
                                                  "-9223372036854775808"};
  if (text.empty()) return text;
  const size_t from = random / std::size(kNumbers) % text.size();
  size_t begin = from;
  while (begin < text.size() && !belongs_to_number(text[begin])) ++begin;
  size_t end = begin;
  while (end < text.size() && belongs_to_number(text[end])) ++end;
  return text.replace(begin, end - begin, kNumbers[random % std::size(kNumbers)]);
}

const Parser& parser(std::string_view name) {
  for (const Parser& candidate : kParsers) {
    if (candidate.name == name) return candidate;
  }
  throw UserError("no parser is called " + std::string(name));
}

}  // namespace tenon::fuzz
