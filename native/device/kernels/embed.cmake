# Compiles the kernels into one fat binary and embeds it into kvt_device. CUDA is no language of this project: users who
# build from source rarely have nvcc, and then get an addon without kernels.
#
#   KVT_KERNELS = AUTO (default)  with kernels when nvcc is found
#                 ON              nvcc must be found: what release builds ask for
#                 OFF             without
#   KVT_NVCC    = path of nvcc; otherwise $CUDACXX, the PATH, /usr/local/cuda and .nvcc/ (scripts/fetch-nvcc.mjs)
set(KVT_KERNELS AUTO CACHE STRING "Embed the GPU kernels: AUTO, ON or OFF")
set(KVT_NVCC "" CACHE FILEPATH "nvcc to compile the GPU kernels with")

if(KVT_KERNELS STREQUAL "OFF")
  message(STATUS "GPU kernels: off")
  return()
endif()

set(KVT_NVCC_FOUND "${KVT_NVCC}")
if(NOT KVT_NVCC_FOUND)
  file(GLOB KVT_FETCHED_NVCC "${CMAKE_SOURCE_DIR}/.nvcc/*/nvidia/cu*/bin/nvcc")
  unset(KVT_NVCC_SEARCHED CACHE)
  find_program(KVT_NVCC_SEARCHED nvcc HINTS "$ENV{CUDACXX}" PATHS /usr/local/cuda/bin)
  mark_as_advanced(KVT_NVCC_SEARCHED)
  if(DEFINED ENV{CUDACXX})
    set(KVT_NVCC_FOUND "$ENV{CUDACXX}")
  elseif(KVT_NVCC_SEARCHED)
    set(KVT_NVCC_FOUND "${KVT_NVCC_SEARCHED}")
  elseif(KVT_FETCHED_NVCC)
    list(GET KVT_FETCHED_NVCC 0 KVT_NVCC_FOUND)
  endif()
endif()

if(NOT KVT_NVCC_FOUND)
  if(KVT_KERNELS STREQUAL "ON")
    message(FATAL_ERROR "KVT_KERNELS=ON and no nvcc: set KVT_NVCC or CUDACXX, put nvcc on the PATH, or run "
                        "`node scripts/fetch-nvcc.mjs`")
  endif()
  message(STATUS "GPU kernels: none, nvcc was not found (set CUDACXX, or run `node scripts/fetch-nvcc.mjs`)")
  return()
endif()

set(KVT_KERNEL_DIR "${CMAKE_SOURCE_DIR}/native/device/kernels")
set(KVT_FATBIN "${CMAKE_BINARY_DIR}/kvt_kernels.fatbin")
file(GLOB KVT_KERNEL_SOURCES CONFIGURE_DEPENDS "${KVT_KERNEL_DIR}/*.cu" "${KVT_KERNEL_DIR}/*.cuh" "${KVT_KERNEL_DIR}/*.h")
add_custom_command(
  OUTPUT "${KVT_FATBIN}"
  COMMAND "${KVT_NVCC_FOUND}" --fatbin -std=c++17 -O3 --Werror all-warnings
    -ccbin "${CMAKE_CXX_COMPILER}" --compress-mode=size
    "-gencode=arch=compute_80,code=[sm_80,compute_80]"
    "-gencode=arch=compute_90,code=sm_90"
    "-gencode=arch=compute_100,code=sm_100"
    -o "${KVT_FATBIN}" "${KVT_KERNEL_DIR}/kernels.cu"
  DEPENDS ${KVT_KERNEL_SOURCES}
  COMMENT "Compiling the GPU kernels"
  VERBATIM)
add_custom_target(kvt_kernels DEPENDS "${KVT_FATBIN}")
add_dependencies(kvt_device kvt_kernels)
set_source_files_properties(native/device/kernel_image.cc PROPERTIES
  COMPILE_DEFINITIONS "KVT_KERNEL_IMAGE=\"${KVT_FATBIN}\""
  OBJECT_DEPENDS "${KVT_FATBIN}")
message(STATUS "GPU kernels: ${KVT_NVCC_FOUND}")
