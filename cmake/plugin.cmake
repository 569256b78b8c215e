# libonnxruntime_ep_tenon.so: everything of provider/ and what it needs, three exported symbols.

if(NOT TARGET tenon_provider)
  return()
endif()

# tenon_provider is an OBJECT library: from an archive nobody would pull in the entry points.
add_library(onnxruntime_ep_tenon SHARED cmake/glibc_floor.c)
set_target_properties(onnxruntime_ep_tenon PROPERTIES
  LINKER_LANGUAGE CXX
  LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/plugin.map")
target_link_libraries(onnxruntime_ep_tenon PRIVATE tenon_provider)
target_link_options(onnxruntime_ep_tenon PRIVATE
  "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map" LINKER:--exclude-libs,ALL)

# Opened by name, beside the plugin.
if(TARGET tenon_gloo)
  add_dependencies(onnxruntime_ep_tenon tenon_gloo)
endif()

if(TENON_SANITIZE)
  # Stays mapped when it is closed. What LLVM keeps until the process ends is no leak as long as the
  # library is there; and of a copy that is gone, reports cannot name what no suppression then knows.
  target_link_options(onnxruntime_ep_tenon PRIVATE LINKER:-z,nodelete)
else()
  target_link_options(onnxruntime_ep_tenon PRIVATE -static-libstdc++ LINKER:--gc-sections
    LINKER:--no-undefined LINKER:--as-needed $<$<CONFIG:Release>:LINKER:-s>)
endif()
