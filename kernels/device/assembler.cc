#include "kernels/device/assembler.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

#include "base/byte_form.h"
#include "base/content_cache.h"
#include "base/error.h"
#include "codegen/compile.h"
#include "kernels/device/kernel_cache.h"

namespace tenon::device {
namespace {

constexpr int kOldestMajor = 12;

std::string to_bytes(const MachineCode& code) {
  ByteWriter writer;
  writer.text(code.remarks);
  writer.bytes(code.bytes);
  return writer.take();
}

MachineCode from_bytes(std::string_view bytes) {
  ByteReader reader(bytes);
  MachineCode code;
  code.remarks = reader.text();
  code.bytes = reader.bytes(reader.left());
  return code;
}

}  // namespace

std::vector<std::string> names_of_majors(std::string_view library, int newest_major) {
  std::vector<std::string> names;
  for (int major = newest_major; major >= kOldestMajor; --major) {
    names.push_back(fmt::format("{}.{}", library, major));
  }
  return names;
}

const AssemblerAnswer& loaded_once(AssemblerAnswer (*load)(int), int newest_major) {
  static auto* const mutex = new std::mutex;
  static auto* const answers =
      new std::map<std::pair<AssemblerAnswer (*)(int), int>, AssemblerAnswer>;
  const std::lock_guard lock(*mutex);
  const auto [entry, is_new] = answers->try_emplace({load, newest_major});
  if (is_new) entry->second = load(newest_major);
  return entry->second;
}

bool deals_registers(std::string_view ptx) { return ptx.find("setmaxnreg") != ptx.npos; }

bool runs_products_in_turn(const MachineCode& code) {
  return code.remarks.find("Performance Loss") != std::string::npos;
}

Digest content_of(const codegen::GpuCode& code) { return sha256(code.entry + '\n' + code.ptx); }

std::shared_ptr<const MachineCode> assemble_once(const AssemblerAnswer& answer,
                                                 const Digest& content, std::string_view ptx,
                                                 const std::string& arch, DiskCache* cache) {
  const Digest key = sha256(fmt::format("{} {} {}", hex(content), arch, answer.path));
  return process_cache<MachineCode>().get(key, [&] {
    const Digest on_disk = sha256(fmt::format("machine code, form 1\n{}\n{}\n{}\n-arch={}",
                                              compiler_build(), hex(content), answer.build, arch));
    auto code = std::make_shared<const MachineCode>(
        read_or_make(cache, "cubin", on_disk, from_bytes, to_bytes,
                     [&] { return answer.assembler->assemble(ptx, arch); }));
    const size_t bytes = code->bytes.size();
    return std::pair{std::move(code), bytes};
  });
}

Assembled assemble(const codegen::GpuCode& code, const Digest& content, const std::string& arch,
                   const AssemblerAnswer& units, const AssemblerAnswer& whole_programs,
                   DiskCache* cache) {
  Assembled assembled;
  const auto ask = [&](const AssemblerAnswer& answer) {
    assembled.why = answer.support.reason;
    if (!answer.support) return;
    try {
      const auto made = assemble_once(answer, content, code.ptx, arch, cache);
      assembled.why = made->remarks;
      if (!runs_products_in_turn(*made)) assembled.code = made;
    } catch (const UserError& error) {
      assembled.why = error.what();
    }
  };
  if (!deals_registers(code.ptx)) ask(units);
  if (!assembled.code) ask(whole_programs);
  return assembled;
}

Assembled assemble(const codegen::GpuCode& code, const Digest& content, const std::string& arch,
                   int newest_major, DiskCache* cache) {
  return assemble(code, content, arch, nvjitlink(newest_major), nvrtc(newest_major), cache);
}

}  // namespace tenon::device
