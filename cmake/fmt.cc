// fmt compiled once. Its header-only form compiles the whole formatter in every file that formats a
// message, which takes three times as long as the file itself; Debian's library is shared only.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;
template FMT_API void buffer<char>::append<char>(const char*, const char*);
template FMT_API void vformat_to<char>(buffer<char>&, string_view,
                                       basic_format_args<buffer_context<char>>, locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
