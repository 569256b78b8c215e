#include "provider/dump.h"

#include <fmt/format.h>

#include <filesystem>
#include <mutex>

#include "base/error.h"
#include "base/publish_file.h"
#include "graph_partitioner/ir/text.h"

namespace tenon::provider {

struct Dump::Writer {
  std::filesystem::path folder;
  std::mutex mutex;
  int passes = 0;
  ir::Digests digests;

  void write(const std::filesystem::path& file, std::string_view text) const {
    const std::string path = folder / file;
    if (const Support written = publish_file(path, text); !written) {
      throw UserError(fmt::format("dump_dir: '{}' cannot be written: {}", path, written.reason));
    }
  }
};

namespace {

std::string file_name(std::string_view text) {
  std::string name(text.substr(0, 120));
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '_';
  }
  return name;
}

}  // namespace

Dump::Dump(const std::string& folder, std::string_view partition) {
  if (folder.empty()) return;
  writer_ = std::make_shared<Writer>();
  writer_->folder = std::filesystem::path(folder) / file_name(partition);
  std::error_code error;
  std::filesystem::create_directories(writer_->folder, error);
  if (error) {
    throw UserError(fmt::format("dump_dir '{}' cannot be created: {}", folder, error.message()));
  }
}

void Dump::graph(std::string_view stage, const ir::Graph& graph) const {
  if (writer_ == nullptr) return;
  const std::lock_guard lock(writer_->mutex);
  writer_->write(fmt::format("{:02}.{}.graph.txt", writer_->passes++, file_name(stage)),
                 ir::print(graph, {.digests = &writer_->digests}));
}

PassObserver Dump::observer() const {
  if (writer_ == nullptr) return {};
  return [dump = *this](std::string_view pass, const ir::Graph& graph) { dump.graph(pass, graph); };
}

codegen::StageSink Dump::kernel_sink() const {
  if (writer_ == nullptr) return {};
  return
      [writer = writer_](std::string_view kernel, std::string_view stage, std::string_view text) {
        writer->write(fmt::format("{}.{}.txt", file_name(kernel), file_name(stage)), text);
      };
}

}  // namespace tenon::provider
