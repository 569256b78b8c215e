# tenon_test(<name> GROUP <group> SOURCES <files...> [LIBS <targets...>])
#
# One GoogleTest program per call and one CTest test per program (start-up costs more than the
# cases). The group is the CTest label, and the target tests-<group> builds a whole group. Sources
# with a case named *Concurrent* also join the group `concurrent`, which ThreadSanitizer runs, unless
# they need a GPU.
#
# Provider and error tests run once per ONNX Runtime that scripts/setup.sh brought, and find two
# libraries in the environment: TENON_LIBRARY_PATH (the plugin) and TENON_TEST_ONNXRUNTIME (the
# runtime to dlopen).

find_package(GTest REQUIRED)

set(TENON_TEST_GROUPS unit golden conformance provider error ptx gpu multi_rank perf)
set(TENON_TEST_RESULTS "${PROJECT_BINARY_DIR}/test-results")
foreach(group IN ITEMS ${TENON_TEST_GROUPS} concurrent)
  add_custom_target(tests-${group})
endforeach()

# The newest runtime lives in the virtual environment, the oldest supported one beside it.
set(runtime_folders "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages"
  "${PROJECT_SOURCE_DIR}/.deps/onnxruntime-1*")
if(CMAKE_CROSSCOMPILING)
  set(runtime_folders "${CMAKE_FIND_ROOT_PATH}/onnxruntime")
endif()
list(TRANSFORM runtime_folders APPEND "/onnxruntime/capi/libonnxruntime.so.*")
file(GLOB TENON_TEST_RUNTIMES ${runtime_folders})

function(tenon_register_test test_name labels program environment)
  add_test(NAME ${test_name}
    COMMAND ${program} --gtest_brief=1 "--gtest_output=xml:${TENON_TEST_RESULTS}/${test_name}.xml"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${test_name} PROPERTIES
    LABELS "${labels}" ENVIRONMENT "${environment}" TIMEOUT 900)
endfunction()

# tenon_emulated_test(<name> <labels> <program> LEVEL <level> CPU <model of qemu> FILTER <cases>)
#
# Cases whose machine code needs instructions that few build machines have, under an emulator of the
# same architecture. Elsewhere they are skipped and say why.
find_program(TENON_QEMU_AARCH64 qemu-aarch64-static)
function(tenon_emulated_test name labels program)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "LEVEL;CPU;FILTER" "")
  set(command ${program})
  set(environment "TENON_TEST_LEVEL=${arg_LEVEL}")
  if(CMAKE_CROSSCOMPILING OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    list(APPEND environment "TENON_TEST_NO_EMULATOR=needs a native build on aarch64")
  elseif(NOT TENON_QEMU_AARCH64)
    list(APPEND environment "TENON_TEST_NO_EMULATOR=qemu-aarch64-static is not installed")
  else()
    set(command "${TENON_QEMU_AARCH64}" -cpu "${arg_CPU}" $<TARGET_FILE:${program}>)
    # LeakSanitizer stops other threads with ptrace, which user-mode qemu does not have.
    list(APPEND environment "LSAN_OPTIONS=detect_leaks=0")
  endif()
  add_test(NAME ${name}
    COMMAND ${command} --gtest_brief=1 "--gtest_filter=${arg_FILTER}"
      "--gtest_output=xml:${TENON_TEST_RESULTS}/${name}.xml"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES
    LABELS "${labels}" ENVIRONMENT "${environment}" TIMEOUT 900)
endfunction()

function(tenon_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "GROUP" "SOURCES;LIBS")
  if(NOT arg_GROUP IN_LIST TENON_TEST_GROUPS)
    message(FATAL_ERROR
      "tenon_test(${name}): GROUP must be one of ${TENON_TEST_GROUPS}, got '${arg_GROUP}'")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)

  set(labels ${arg_GROUP})
  foreach(source IN LISTS arg_SOURCES)
    file(STRINGS "${source}" concurrent_cases REGEX "TEST.*Concurrent")
    if(concurrent_cases AND NOT concurrent IN_LIST labels AND NOT arg_GROUP STREQUAL gpu)
      list(APPEND labels concurrent)
    endif()
  endforeach()
  foreach(label IN LISTS labels)
    add_dependencies(tests-${label} ${name})
  endforeach()

  if(NOT arg_GROUP MATCHES "^(provider|error)$")
    tenon_register_test(${name} "${labels}" ${name} "")
    return()
  endif()

  target_link_libraries(${name} PRIVATE tenon::onnxruntime_headers ${CMAKE_DL_LIBS})
  add_dependencies(${name} onnxruntime_ep_tenon)
  foreach(runtime IN LISTS TENON_TEST_RUNTIMES)
    string(REGEX REPLACE ".*libonnxruntime\\.so\\." "" version "${runtime}")
    tenon_register_test(${name}.ort-${version} "${labels}" ${name}
      "TENON_LIBRARY_PATH=$<TARGET_FILE:onnxruntime_ep_tenon>;TENON_TEST_ONNXRUNTIME=${runtime}")
  endforeach()
endfunction()
