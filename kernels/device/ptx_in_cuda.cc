#include "kernels/device/ptx_in_cuda.h"

#include <fmt/format.h>

#include <optional>
#include <regex>
#include <vector>

#include "base/error.h"

namespace tenon::device {
namespace {

[[noreturn]] void refuse(std::string_view line) {
  throw UserError(fmt::format("PTX that is not one kernel of ours: '{}'", line));
}

std::string_view trimmed(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = line.find_first_not_of(kBlank);
  if (first == line.npos) return {};
  return line.substr(first, line.find_last_not_of(kBlank) - first + 1);
}

// Without comments and what is blank.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    if (!line.empty() && !line.starts_with("//")) lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

class Source {
 public:
  explicit Source(std::string_view ptx) : lines_(lines_of(ptx)) {}

  std::string write() {
    head();
    parameters();
    limits();
    const std::string body = body_text();
    std::string out;
    std::string shared;
    if (shared_) {
      out += fmt::format("extern __shared__ __align__({}) unsigned char {}[];\n",
                         shared_->alignment, shared_->name);
      // Named as an operand, or the declaration would be dropped.
      shared = fmt::format(" : : \"l\"({})", shared_->name);
    }
    return out + descriptors_ +
           fmt::format(
               "extern \"C\" __global__ void{} {}({}) {{\nasm "
               "volatile(\n\"{{\\n\"\n{}\"}}\\n\"{});\n}}\n",
               bounds_, name_, parameters_, body, shared);
  }

 private:
  struct Shared {
    std::string alignment, name;
  };

  std::string_view next() {
    if (at_ == lines_.size()) refuse("it ends early");
    return lines_[at_++];
  }

  bool match(std::string_view line, const char* pattern) {
    return std::regex_match(line.begin(), line.end(), found_, std::regex(pattern));
  }

  void head() {
    for (;;) {
      const std::string_view line = next();
      if (match(line, R"(\.visible \.entry (\w+)\()")) {
        name_ = found_[1];
        return;
      }
      if (match(line, R"(\.extern \.shared \.align (\d+) \.b8 (\w+)\[\];)") && !shared_) {
        shared_ = {found_[1], found_[2]};
      } else if (!match(line, R"(\.(version|target|address_size) .*)")) {
        refuse(line);
      }
    }
  }

  // LLVM and NVRTC give the i-th parameter the same name.
  void parameters() {
    for (int i = 0;; ++i) {
      const std::string_view line = next();
      if (line == ")") return;
      const std::string name = fmt::format("{}_param_{}", name_, i);
      std::string type;
      if (match(line, R"(\.param \.[ub]64 (\w+),?)") && found_[1] == name) {
        type = "unsigned long long";
      } else if (match(line, R"(\.param \.align (\d+) \.b8 (\w+)\[(\d+)\],?)") &&
                 found_[2] == name) {
        type = fmt::format("const __grid_constant__ Bytes{}", i);
        descriptors_ += fmt::format("struct alignas({}) Bytes{} {{ char bytes[{}]; }};\n",
                                    found_[1].str(), i, found_[3].str());
      } else {
        refuse(line);
      }
      parameters_ += fmt::format("{}{} p{}", i == 0 ? "" : ", ", type, i);
    }
  }

  void limits() {
    std::string threads, ctas, registers;
    for (;;) {
      const std::string_view line = next();
      if (line == "{") break;
      if (match(line, R"(\.(?:req|max)ntid (\d+)(?:, 1, 1)?)")) {
        threads = found_[1];
      } else if (match(line, R"(\.minnctapersm (\d+))")) {
        ctas = ", " + found_[1].str();
      } else if (match(line, R"(\.maxnreg (\d+))")) {
        registers = fmt::format(" __maxnreg__({})", found_[1].str());
      } else {
        refuse(line);
      }
    }
    if (!threads.empty()) bounds_ = fmt::format(" __launch_bounds__({}{})", threads, ctas);
    bounds_ += registers;
  }

  std::string body_text() {
    if (lines_.size() == at_ || lines_.back() != "}") refuse("it ends early");
    std::string body;
    for (; at_ + 1 < lines_.size(); ++at_) {
      // Another entry or function would stand behind a brace without indentation; inside of a
      // string it would be nonsense to whoever reads it, and an error.
      if (lines_[at_].starts_with(".visible") || lines_[at_].starts_with(".func")) {
        refuse(lines_[at_]);
      }
      body += '"';
      for (const char c : lines_[at_]) {
        if (c == '"' || c == '\\') body += '\\';
        if (c == '%') body += '%';
        body += c;
      }
      body += "\\n\"\n";
    }
    return body;
  }

  const std::vector<std::string_view> lines_;
  size_t at_ = 0;
  std::match_results<std::string_view::const_iterator> found_;
  std::string name_, parameters_, descriptors_, bounds_;
  std::optional<Shared> shared_;
};

}  // namespace

std::string cuda_source_of(std::string_view ptx) { return Source(ptx).write(); }

}  // namespace tenon::device
