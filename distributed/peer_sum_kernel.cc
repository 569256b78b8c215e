#include "distributed/peer_sum_kernel.h"

#include <fmt/format.h>

#include <string>

#include "base/error.h"

namespace tenon::distributed {
namespace {

// Of one CTA, from one rank, in one of two places: 8 bytes travel for each 4, in two halves, so
// that neighbours of a warp store side by side.
constexpr int64_t kHalfBytes = PeerSumKernel::kThreads * 16, kPlaceBytes = 2 * kHalfBytes;

class Text {
 public:
  explicit Text(const PeerSumKernel& kernel) : kernel_(kernel) {}

  std::string make(const std::string& entry) {
    head(entry);
    line("mov.u32 %thread, %tid.x;", "mov.u32 %cta, %ctaid.x;");
    load_parameters();
    if (has_pdl()) line("griddepcontrol.wait;");
    // Behind the wait: while the launches before this one run, the next one would be in their way.
    if (kernel_.launches_dependents) line("griddepcontrol.launch_dependents;");
    line("ld.global.u32 %epoch, [%counter];", "add.u32 %epoch, %epoch, 1;");
    line("mad.lo.u32 %index, %cta, 256, %thread;", "cvt.u64.u32 %wide, %index;",
         "setp.ge.u64 %skip, %wide, %chunks;", "@%skip bra END;");
    load_input();
    for (int peer = 0; peer < kernel_.ranks; ++peer) {
      if (peer != kernel_.rank) send(peer);
    }
    line("mov.u32 %polls, 0;");
    for (int source = 0; source < kernel_.ranks; ++source) add(source);
    store_output();
    foot();
    return std::move(text_);
  }

 private:
  template <typename... Lines>
  void line(const Lines&... lines) {
    ((text_ += fmt::format("  {}\n", lines)), ...);
  }
  bool has_pdl() const { return kernel_.compute_major >= 9; }
  bool is_half() const { return kernel_.dtype != DType::kF32; }

  void head(const std::string& entry) {
    text_ = has_pdl() ? ".version 7.8\n.target sm_90\n" : ".version 7.0\n.target sm_80\n";
    text_ += fmt::format(".address_size 64\n.visible .entry {}(\n", entry);
    const int parameters = 5 + kernel_.ranks;
    for (int i = 0; i < parameters; ++i) {
      text_ += fmt::format("  .param .u64 p{}{}\n", i, i + 1 < parameters ? "," : "");
    }
    text_ += fmt::format(")\n.maxntid {}, 1, 1\n{{\n", PeerSumKernel::kThreads);
    line(".reg .pred %skip, %wait, %any;", ".reg .b16 %h<2>;",
         ".reg .b32 %thread, %cta, %epoch, %index, %place, %polls, %stop, %lo, %hi, %flag;",
         ".reg .b32 %own<4>, %got<4>;", ".reg .f32 %sum<8>, %x<2>;",
         ".reg .b64 %in, %out, %chunks, %counter, %word, %wide, %at, %a, %b, %c, %d;",
         fmt::format(".reg .b64 %peer<{}>;", kernel_.ranks));
  }

  void load_parameters() {
    int number = 0;
    for (const char* name : {"%in", "%out", "%chunks", "%counter", "%word"}) {
      line(fmt::format("ld.param.u64 {}, [p{}];", name, number++));
    }
    for (int rank = 0; rank < kernel_.ranks; ++rank) {
      line(fmt::format("ld.param.u64 %peer{}, [p{}];", rank, number++));
    }
    line("mul.wide.u32 %wide, %cta, 4;", "add.u64 %counter, %counter, %wide;");
  }

  void load_input() {
    line("shl.b64 %wide, %wide, 4;", "add.u64 %in, %in, %wide;", "add.u64 %out, %out, %wide;",
         "ld.global.v4.b32 {%own0, %own1, %own2, %own3}, [%in];");
    // %place: of this thread, in what rank 0 brings to this CTA in this exchange.
    line("and.b32 %place, %epoch, 1;", "mad.lo.u32 %place, %cta, 2, %place;",
         fmt::format("mul.lo.u32 %place, %place, {};", kernel_.ranks * kPlaceBytes),
         "mad.lo.u32 %place, %thread, 16, %place;", "cvt.u64.u32 %wide, %place;");
  }

  void send(int peer) {
    line(fmt::format("add.u64 %at, %peer{}, %wide;", peer));
    const int64_t begin = kernel_.rank * kPlaceBytes;
    for (int half = 0; half < 2; ++half) {
      line(fmt::format("mov.b64 %a, {{%own{}, %epoch}};", 2 * half),
           fmt::format("mov.b64 %b, {{%own{}, %epoch}};", 2 * half + 1),
           fmt::format("st.relaxed.sys.global.v2.b64 [%at+{}], {{%a, %b}};",
                       begin + half * kHalfBytes));
    }
  }

  // Adds what `source` brings.
  void add(int source) {
    const bool is_own = source == kernel_.rank;
    if (!is_own) poll(source);
    for (int word = 0; word < 4; ++word) {
      add_word(word, fmt::format("%{}{}", is_own ? "own" : "got", word), source == 0);
    }
  }

  void poll(int source) {
    const int64_t begin = source * kPlaceBytes;
    line(fmt::format("add.u64 %at, %peer{}, %wide;", kernel_.rank));
    text_ += fmt::format("POLL{}:\n", source);
    line(fmt::format("ld.relaxed.sys.global.v2.b64 {{%a, %b}}, [%at+{}];", begin),
         fmt::format("ld.relaxed.sys.global.v2.b64 {{%c, %d}}, [%at+{}];", begin + kHalfBytes),
         "mov.b64 {%got0, %flag}, %a;", "setp.ne.u32 %wait, %flag, %epoch;");
    for (const auto& [word, from] : {std::pair(1, "%b"), std::pair(2, "%c"), std::pair(3, "%d")}) {
      line(fmt::format("mov.b64 {{%got{}, %flag}}, {};", word, from),
           "setp.ne.or.u32 %wait, %flag, %epoch, %wait;");
    }
    line(fmt::format("@!%wait bra GOT{};", source));
    // The host's word is far away: it is looked at now and then.
    line("add.u32 %polls, %polls, 1;", "and.b32 %stop, %polls, 1023;",
         "setp.ne.u32 %any, %stop, 0;", fmt::format("@%any bra POLL{};", source),
         "ld.relaxed.sys.global.u32 %stop, [%word];", "setp.eq.u32 %any, %stop, 0;",
         fmt::format("@%any bra POLL{};", source), "bra END;");
    text_ += fmt::format("GOT{}:\n", source);
  }

  void add_word(int word, const std::string& from, bool is_first) {
    if (!is_half()) {
      line(fmt::format("mov.b32 %x0, {};", from));
      return accumulate(word, 0, is_first);
    }
    if (kernel_.dtype == DType::kF16) {
      line(fmt::format("mov.b32 {{%h0, %h1}}, {};", from), "cvt.f32.f16 %x0, %h0;",
           "cvt.f32.f16 %x1, %h1;");
    } else {
      line(fmt::format("shl.b32 %lo, {}, 16;", from), "mov.b32 %x0, %lo;",
           fmt::format("and.b32 %hi, {}, 0xffff0000;", from), "mov.b32 %x1, %hi;");
    }
    accumulate(2 * word, 0, is_first);
    accumulate(2 * word + 1, 1, is_first);
  }

  void accumulate(int sum, int from, bool is_first) {
    line(is_first ? fmt::format("mov.f32 %sum{}, %x{};", sum, from)
                  : fmt::format("add.f32 %sum{0}, %sum{0}, %x{1};", sum, from));
  }

  void store_output() {
    for (int word = 0; word < 4; ++word) {
      if (is_half()) {
        line(fmt::format("cvt.rn.{}x2.f32 %got{}, %sum{}, %sum{};",
                         kernel_.dtype == DType::kF16 ? "f16" : "bf16", word, 2 * word + 1,
                         2 * word));
      } else {
        line(fmt::format("mov.b32 %got{0}, %sum{0};", word));
      }
    }
    line("st.global.v4.b32 [%out], {%got0, %got1, %got2, %got3};");
  }

  void foot() {
    text_ += "END:\n";
    line("bar.sync 0;", "setp.ne.u32 %skip, %thread, 0;",
         "@!%skip st.global.u32 [%counter], %epoch;", "ret;");
    text_ += "}\n";
  }

  const PeerSumKernel& kernel_;
  std::string text_;
};

}  // namespace

size_t PeerSumKernel::memory_bytes(int ranks, int ctas) {
  return static_cast<size_t>(ctas) * 2 * static_cast<size_t>(ranks * kPlaceBytes);
}

codegen::GpuCode PeerSumKernel::code() const {
  if (dtype != DType::kF16 && dtype != DType::kBF16 && dtype != DType::kF32) {
    throw InternalError(fmt::format("no sum of {} in peer memory", name(dtype)));
  }
  codegen::GpuCode code;
  code.entry = fmt::format("peer_sum_{}_{}_of_{}", name(dtype), rank, ranks);
  code.ptx = Text(*this).make(code.entry);
  code.threads = kThreads;
  code.pdl = compute_major >= 9;
  return code;
}

}  // namespace tenon::distributed
