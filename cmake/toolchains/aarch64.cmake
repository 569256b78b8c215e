set(tenon_target aarch64)
include("${CMAKE_CURRENT_LIST_DIR}/debian_cross.cmake")
