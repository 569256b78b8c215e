# Shared by the two architecture files: Debian's cross compiler and the sysroot that
# `scripts/setup.sh --cross` unpacks. Where the target is the host, everything stays native.

if(CMAKE_HOST_SYSTEM_PROCESSOR STREQUAL tenon_target)
  return()
endif()

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${tenon_target})
set(CMAKE_LIBRARY_ARCHITECTURE ${tenon_target}-linux-gnu)
set(CMAKE_C_COMPILER ${tenon_target}-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER ${tenon_target}-linux-gnu-g++)

cmake_path(SET tenon_root NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../..")
set(tenon_sysroot "${tenon_root}/.deps/sysroot-${tenon_target}")
if(NOT EXISTS "${tenon_sysroot}")
  message(FATAL_ERROR "${tenon_sysroot} is missing: run scripts/setup.sh --cross")
endif()
set(CMAKE_FIND_ROOT_PATH "${tenon_sysroot}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(LLVM_DIR "${tenon_sysroot}/usr/lib/llvm-19/cmake")

# The cross compilers carry their own C and C++ runtimes, outside the sysroot.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-${tenon_target}-static -L /usr/${tenon_target}-linux-gnu)
