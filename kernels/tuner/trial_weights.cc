#include "kernels/tuner/trial_weights.h"

#include <map>
#include <set>
#include <string>

#include <fmt/format.h>

#include "base/hash.h"
#include "codegen/tile/content.h"

namespace tenon::kernels {
namespace {

// Scales of columns and biases, which lie beside weights, have fewer bytes.
constexpr size_t kSmall = size_t{1} << 20;

// Bytes of the model stay where they are as long as the graph; tables of a packing's own do not.
std::string text_of(const DevicePacking::Source& source) {
  if (source.owned != nullptr) return hex(sha256(source.bytes));
  return fmt::format("{}+{}", static_cast<const void*>(source.bytes.data()), source.bytes.size());
}

class Namer {
 public:
  // Empty: it has no name.
  std::string text_of(const Slot& slot) {
    if (slot.kind != Slot::Kind::kConstant) return "";
    if (!slot.on_device.pieces.empty()) return text_of(slot.on_device);
    const auto bytes = static_cast<size_t>(slot.bytes.value());
    if (slot.data == nullptr || bytes > kSmall) return "";
    return "bytes " + hex(sha256({static_cast<const std::byte*>(slot.data.get()), bytes}));
  }

 private:
  std::string text_of(const DevicePacking& packing) {
    std::string text;
    for (const DevicePacking::Piece& piece : packing.pieces) {
      text += fmt::format("{} {} {}:", content_of(*piece.kernel), piece.tasks, piece.first_byte);
      for (const auto& source : piece.sources) text += kernels::text_of(source) + " ";
      for (const int64_t index : piece.indices) text += fmt::format("{},", index);
    }
    return text;
  }

  const std::string& content_of(const codegen::Kernel& kernel) {
    std::string& content = contents_[&kernel];
    if (content.empty()) content = hex(codegen::content_of(kernel));
    return content;
  }

  std::map<const codegen::Kernel*, std::string> contents_;
};

}  // namespace

void name_shared_weights(Program& program) {
  Namer namer;
  std::map<std::string, int> equal;
  for (Slot& slot : program.slots) {
    const std::string text = namer.text_of(slot);
    if (text.empty()) continue;
    slot.content = sha256(fmt::format("{} {}", text, equal[text]++));
  }
}

size_t weight_bytes_together(const std::vector<const Program*>& programs) {
  std::set<Digest> seen;
  size_t bytes = 0;
  for (const Program* program : programs) {
    for (const Slot& slot : program->slots) {
      if (slot.kind != Slot::Kind::kConstant) continue;
      if (slot.content && !seen.insert(*slot.content).second) continue;
      bytes += static_cast<size_t>(slot.bytes.value());
    }
  }
  return bytes;
}

}  // namespace tenon::kernels
