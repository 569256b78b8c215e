#include "tests/kernels/reference/golden_cases.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/reference/evaluate.h"

namespace tenon::kernels::reference {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The stored result is rounded to its type, and computed in it too.
double tolerance(DType dtype, double value) {
  const double relative = dtype == DType::kF16 ? 4e-3 : dtype == DType::kBF16 ? 2e-2 : 1e-4;
  return is_small_float(dtype) ? 0 : relative * std::fabs(value) + relative / 10;
}

bool agree(DType dtype, double ours, double rounded, double stored) {
  if (std::isnan(stored)) return std::isnan(ours);
  if (std::isinf(stored)) return rounded == stored;
  return std::fabs(ours - stored) <= tolerance(dtype, stored);
}

}  // namespace

GoldenCases::GoldenCases(const std::string& generator)
    : folder_(fs::temp_directory_path() / fmt::format("tenon_{}_{}", generator, getpid())) {
  constexpr const char* kPython = ".venv/bin/python";
  if (!fs::exists(kPython)) {
    missing_ = fmt::format("no {}: run scripts/setup.sh", kPython);
    return;
  }
  const std::string command =
      fmt::format("{} tests/kernels/reference/{} {}", kPython, generator, folder_.string());
  if (std::system(command.c_str()) != 0) throw UserError("failed: " + command);
}

GoldenCases::~GoldenCases() { fs::remove_all(folder_); }

std::vector<std::string> GoldenCases::names() const {
  std::vector<std::string> names;
  for (const fs::directory_entry& file : fs::directory_iterator(folder_)) {
    if (file.path().extension() == ".ir") names.push_back(file.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

GoldenCase GoldenCases::load(const std::string& name) const {
  return complete(name, read(folder_ / (name + ".ir")));
}

GoldenCase GoldenCases::load_with_constants(const std::string& name) const {
  std::istringstream lines(read(folder_ / (name + ".ir")));
  std::string text;
  int inputs = 0;
  for (std::string line; std::getline(lines, line); text += line + "\n") {
    constexpr std::string_view kInput = "  input ";
    if (line.rfind(kInput, 0) != 0) continue;
    if (const int index = inputs++; index > 0) {
      line = fmt::format("  const {} = hex:", line.substr(kInput.size()));
      for (const char byte : read(folder_ / fmt::format("{}.in{}", name, index))) {
        line += fmt::format("{:02x}", static_cast<unsigned char>(byte));
      }
    }
  }
  return complete(name, text);
}

GoldenCase GoldenCases::complete(const std::string& name, const std::string& text) const {
  GoldenCase golden{name, ir::parse(text), {}, {}};
  for (size_t i = 0; i < golden.graph.inputs().size(); ++i) {
    const ir::Value& value = golden.graph.value(golden.graph.inputs()[i]);
    const std::string bytes = read(folder_ / fmt::format("{}.in{}", name, i));
    golden.inputs.push_back(
        ReferenceTensor::from_bytes(value.dtype, static_dims(*value.shape), bytes.data()));
  }
  for (size_t i = 0; i < golden.graph.outputs().size(); ++i) {
    golden.outputs.push_back(read(folder_ / fmt::format("{}.out{}", name, i)));
  }
  return golden;
}

bool is_judged(const GoldenCase& golden) {
  if (golden.name.find("training") != std::string::npos) return false;
  // Stored with four digits.
  if (golden.name == "test_averagepool_2d_ceil_last_window_starts_on_pad") return false;
  return std::all_of(golden.graph.order().begin(), golden.graph.order().end(),
                     [&](ir::NodeId id) { return is_known(golden.graph.node(id).op); });
}

std::string disagreement(const GoldenCase& golden, const std::vector<ReferenceTensor>& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    const ReferenceTensor& ours = results[i];
    if (storage_bytes(ours.dtype, ours.elements()) != golden.outputs.at(i).size()) {
      return fmt::format("output {} has another size than the stored one", i);
    }
    const ReferenceTensor rounded = ours.rounded();
    for (int64_t at = 0; at < ours.elements(); ++at) {
      const double stored =
          ours.is_real()
              ? load_element(ours.dtype, golden.outputs[i].data(), at)
              : static_cast<double>(load_integer(ours.dtype, golden.outputs[i].data(), at));
      if (!agree(ours.dtype, ours.number(at), rounded.number(at), stored)) {
        return fmt::format("output {} element {}: {}, stored {}", i, at, ours.number(at), stored);
      }
    }
  }
  return "";
}

}  // namespace tenon::kernels::reference
