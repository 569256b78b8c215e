# tenon_test(<name> GROUP <group> SOURCES <files...> [LIBS <targets...>])
#
# One GoogleTest program per call and one CTest test per program (start-up costs more than the
# cases); the group is the CTest label. Groups: unit golden conformance provider error ptx gpu
# multi_rank perf. Provider tests run once per runtime listed below and find their two libraries in
# the environment: TENON_LIBRARY_PATH (the plugin) and TENON_TEST_ONNXRUNTIME (the runtime to dlopen).

find_package(GTest REQUIRED)
include(GoogleTest)

set(TENON_TEST_GROUPS unit golden conformance provider error ptx gpu multi_rank perf)
set(TENON_TEST_RESULTS "${PROJECT_BINARY_DIR}/test-results" CACHE PATH "Folder for JUnit files")

function(tenon_register_test test_name group program environment)
  add_test(NAME ${test_name} COMMAND ${program} --gtest_brief=1
    "--gtest_output=xml:${TENON_TEST_RESULTS}/${test_name}.xml"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${test_name} PROPERTIES LABELS ${group} TIMEOUT 900
    ENVIRONMENT "${environment}" SKIP_RETURN_CODE 77)
endfunction()

function(tenon_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "GROUP" "SOURCES;LIBS")
  if(NOT arg_GROUP IN_LIST TENON_TEST_GROUPS)
    message(FATAL_ERROR "tenon_test(${name}): GROUP must be one of ${TENON_TEST_GROUPS}, got '${arg_GROUP}'")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(NOT arg_GROUP STREQUAL "provider")
    tenon_register_test(${name} ${arg_GROUP} ${name} "")
    return()
  endif()

  target_link_libraries(${name} PRIVATE tenon::onnxruntime_headers ${CMAKE_DL_LIBS})
  add_dependencies(${name} onnxruntime_ep_tenon)
  foreach(runtime IN LISTS TENON_TEST_RUNTIMES)
    string(REGEX REPLACE ".*libonnxruntime\\.so\\." "" version "${runtime}")
    tenon_register_test(${name}.ort-${version} provider ${name}
      "TENON_LIBRARY_PATH=$<TARGET_FILE:onnxruntime_ep_tenon>;TENON_TEST_ONNXRUNTIME=${runtime}")
  endforeach()
endfunction()

# The newest runtime lives in the virtual environment, the oldest supported one in .deps.
file(GLOB TENON_TEST_RUNTIMES
  "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.*"
  "${PROJECT_SOURCE_DIR}/.deps/onnxruntime-1*/onnxruntime/capi/libonnxruntime.so.*")
