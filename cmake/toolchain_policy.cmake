# What every target of the project is compiled with.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# NDEBUG stays out: a failed assert in a release build is a bug report, not a wrong number.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g0")
set(CMAKE_C_FLAGS_RELEASE "-O2 -g0")

# Paths below the tree count as relative, so that a clone finds what another one compiled.
find_program(TENON_CCACHE ccache)
if(TENON_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}"
    CCACHE_NOHASHDIR=1 "${TENON_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Werror -ffunction-sections -fdata-sections)
include_directories("${PROJECT_SOURCE_DIR}")

# gold exports two libstdc++ symbols in spite of the version script; lld and bfd do not, and lld
# links LLVM in well under a second. A cross compiler usually knows bfd only.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=lld TENON_HAVE_LLD)
if(TENON_HAVE_LLD)
  add_link_options(-fuse-ld=lld)
endif()

if(TENON_SANITIZE)
  add_compile_options(-fsanitize=${TENON_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # Instrumented code is inlined differently, and GCC 12 then warns of LLVM's and the standard
  # library's own headers. The plain builds keep both warnings.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized -Wno-mismatched-new-delete)
  endif()
  add_link_options(-fsanitize=${TENON_SANITIZE})
endif()
