# LLVM 19, linked statically and only behind codegen/: tenon_link_llvm(<target>).

if(NOT CMAKE_CROSSCOMPILING)
  # Debian keeps each LLVM release in a folder of its own.
  list(APPEND CMAKE_PREFIX_PATH /usr/lib/llvm-19)
endif()
find_package(LLVM 19.1 REQUIRED CONFIG)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(TENON_LLVM_HOST_CODEGEN x86codegen)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(TENON_LLVM_HOST_CODEGEN aarch64codegen)
else()
  message(FATAL_ERROR "Tenon runs on x86_64 and aarch64; this build is for '${CMAKE_SYSTEM_PROCESSOR}'")
endif()
llvm_map_components_to_libnames(
  TENON_LLVM_LIBRARIES core passes orcjit nvptxcodegen ${TENON_LLVM_HOST_CODEGEN})

# LLVMSupport names shared libraries: z3 and xml2 are not needed by anything linked here, z and zstd
# come in statically so that the plugin needs only the C runtime.
get_target_property(support_links LLVMSupport INTERFACE_LINK_LIBRARIES)
list(FILTER support_links EXCLUDE REGEX "z3|xml2|zstd|ZLIB|libz\\.|tinfo|curses|Terminfo")
find_library(TENON_ZLIB_STATIC NAMES libz.a REQUIRED)
find_library(TENON_ZSTD_STATIC NAMES libzstd.a REQUIRED)
set_target_properties(LLVMSupport PROPERTIES INTERFACE_LINK_LIBRARIES
  "${support_links};${TENON_ZLIB_STATIC};${TENON_ZSTD_STATIC}")

function(tenon_link_llvm target)
  target_include_directories(${target} SYSTEM PRIVATE ${LLVM_INCLUDE_DIRS})
  separate_arguments(definitions NATIVE_COMMAND "${LLVM_DEFINITIONS}")
  target_compile_definitions(${target} PRIVATE ${definitions})
  target_link_libraries(${target} PRIVATE ${TENON_LLVM_LIBRARIES})
endfunction()
