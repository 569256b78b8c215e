#include "base/context_file.h"

#include <algorithm>

#include "base/error.h"

namespace tenon {

std::unique_ptr<ContextWriter> ContextWriter::to_file(const std::string&) {
  throw InternalError("not yet");
}
std::unique_ptr<ContextWriter> ContextWriter::to_memory() { throw InternalError("not yet"); }
std::shared_ptr<const ContextFile> ContextFile::open(const std::string&) {
  throw InternalError("not yet");
}
std::shared_ptr<const ContextFile> ContextFile::from_bytes(std::string_view) {
  throw InternalError("not yet");
}
void ContextFile::verify(const DataSection& data, size_t chunk) const {
  const uint64_t first = chunk * kContextChunkBytes;
  verify(data, chunk,
         data.bytes.subspan(first, std::min(kContextChunkBytes, data.bytes.size() - first)));
}

}  // namespace tenon
