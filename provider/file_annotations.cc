#include "provider/file_annotations.h"

#include <exception>
#include <filesystem>

#include "base/file_mapping.h"
#include "provider/api.h"

namespace tenon::provider {

distributed::Annotations annotations_of(const OrtGraph& graph, int64_t ranks) {
  const ORTCHAR_T* path = nullptr;
  check(runtime().api->Graph_GetModelPath(&graph, &path));
  if (path == nullptr || *path == 0) return {};
  try {
    // Downloads of hubs are symlinks.
    const FileMapping file(std::filesystem::canonical(path).string(), "model");
    return distributed::read_annotations(file.bytes(), ranks);
  } catch (const std::exception& error) {
    distributed::Annotations none;
    none.unfollowed.push_back({"the model's file", error.what()});
    return none;
  }
}

}  // namespace tenon::provider
