#include "kernels/saved_program.h"

#include "base/error.h"

namespace tenon::kernels {

void save_program(const Program&, std::string_view, const Settings&, ContextWriter&,
                  const SaveOptions&) {
  throw InternalError("not yet");
}
OpenedProgram open_program(const std::shared_ptr<const ContextFile>&, std::string_view,
                           const Settings&) {
  throw InternalError("not yet");
}
std::vector<SavedProgram> saved_programs(const ContextFile&) { throw InternalError("not yet"); }
SavedFit fit_of(const ContextFile&, std::string_view, const Settings&) {
  throw InternalError("not yet");
}

}  // namespace tenon::kernels
