set(tenon_target x86_64)
include("${CMAKE_CURRENT_LIST_DIR}/debian_cross.cmake")
