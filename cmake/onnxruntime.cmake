# ONNX Runtime's C API headers, fetched by scripts/setup.sh. Only provider/ (and its tests) may link
# tenon::onnxruntime_headers; nothing links the runtime itself.

find_path(TENON_ONNXRUNTIME_INCLUDE_DIR onnxruntime_c_api.h
  PATHS "${PROJECT_SOURCE_DIR}/.deps/onnxruntime-headers" NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
if(NOT TENON_ONNXRUNTIME_INCLUDE_DIR)
  message(FATAL_ERROR "onnxruntime_c_api.h was not found: run scripts/setup.sh, which fetches ONNX "
    "Runtime's headers into .deps/onnxruntime-headers")
endif()

add_library(tenon_onnxruntime_headers INTERFACE)
add_library(tenon::onnxruntime_headers ALIAS tenon_onnxruntime_headers)
target_include_directories(tenon_onnxruntime_headers SYSTEM INTERFACE "${TENON_ONNXRUNTIME_INCLUDE_DIR}")
# Without this every translation unit would ask the linker for OrtGetApiBase.
target_compile_definitions(tenon_onnxruntime_headers INTERFACE ORT_API_MANUAL_INIT)
