# The CUDA backend, libheadrace_cuda.so: built by calling nvcc, where it is found. Nothing else of the
# build knows of CUDA, so that the same `headrace` runs with and without a GPU.
find_program(HEADRACE_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin)
# Blackwell and C++20 ask for 12.8.
set(cuda_missing "nvcc is not found; set CUDA_HOME")
if(HEADRACE_NVCC)
  get_filename_component(cuda_bin "${HEADRACE_NVCC}" REALPATH)
  get_filename_component(cuda_bin "${cuda_bin}" DIRECTORY)
  get_filename_component(cuda_root "${cuda_bin}" DIRECTORY)
  execute_process(COMMAND ${HEADRACE_NVCC} --version OUTPUT_VARIABLE cuda_version ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" cuda_version "${cuda_version}")
  set(cuda_version "${CMAKE_MATCH_1}")
  find_path(HEADRACE_CUBLASLT_INCLUDE cublasLt.h HINTS "${cuda_root}/include")
  if(cuda_version VERSION_LESS 12.8)
    set(cuda_missing "${HEADRACE_NVCC} is of CUDA ${cuda_version}; 12.8 or later is needed")
  elseif(NOT HEADRACE_CUBLASLT_INCLUDE)
    set(cuda_missing "cublasLt.h is not found beside ${HEADRACE_NVCC}")
  else()
    set(cuda_missing "")
  endif()
endif()
if(cuda_missing)
  set(default_cuda OFF)
else()
  set(default_cuda ON)
endif()
option(HEADRACE_CUDA "Build the CUDA backend" ${default_cuda})
# Ampere, Ada, Hopper, Blackwell. The last one is also kept as PTX, for GPUs that come later.
set(HEADRACE_CUDA_ARCHITECTURES "80;89;90;100" CACHE STRING
    "Compute capabilities that the CUDA backend is built for, without the point")
if(HEADRACE_CUDA AND cuda_missing)
  message(FATAL_ERROR "HEADRACE_CUDA is on, but ${cuda_missing}")
endif()

# headrace_cuda_library(NAME SOURCES...): a shared library of .cu files in bin/, and the target NAME.
function(headrace_cuda_library name)
  set(flags -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr
      # The same bits as the CPU's: nothing is fused into one rounding.
      --fmad=false
      # fmt 9 takes nvcc for a compiler without constexpr.
      -DFMT_USE_CONSTEXPR=1
      -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-unknown-pragmas)
  if(HEADRACE_WERROR)
    list(APPEND flags -Werror=all-warnings)
  endif()
  list(SORT HEADRACE_CUDA_ARCHITECTURES COMPARE NATURAL)
  # The kernels use no instruction that Ampere lacks. So architectures before Blackwell (100) get the
  # same machine code from the PTX of the oldest one as from their own, which takes seconds to make. For
  # Blackwell nvcc has another LLVM.
  set(before_blackwell ${HEADRACE_CUDA_ARCHITECTURES})
  list(FILTER before_blackwell INCLUDE REGEX "^[0-9][0-9][a-z]?$")
  foreach(architecture ${HEADRACE_CUDA_ARCHITECTURES})
    set(virtual ${architecture})
    if(architecture IN_LIST before_blackwell)
      list(GET before_blackwell 0 virtual)
    endif()
    list(APPEND flags -gencode arch=compute_${virtual},code=sm_${architecture})
  endforeach()
  list(GET HEADRACE_CUDA_ARCHITECTURES -1 newest)
  list(APPEND flags -gencode arch=compute_${newest},code=compute_${newest})
  set(launcher)
  if(HEADRACE_CCACHE)
    set(launcher ${HEADRACE_CCACHE})
  endif()
  set(objects)
  foreach(source ${ARGN})
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${source}.o")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND ${launcher} ${HEADRACE_NVCC} ${flags} "-I${PROJECT_SOURCE_DIR}"
              "-I${HEADRACE_CUBLASLT_INCLUDE}" -MD -MF "${object}.d"
              -c "${CMAKE_CURRENT_SOURCE_DIR}/${source}" -o "${object}"
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}"
      DEPFILE "${object}.d"
      COMMENT "Building CUDA object ${source}"
      VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  set(library "${PROJECT_BINARY_DIR}/bin/lib${name}.so")
  add_custom_command(
    OUTPUT "${library}"
    COMMAND ${CMAKE_COMMAND} -E make_directory "${PROJECT_BINARY_DIR}/bin"
    COMMAND ${HEADRACE_NVCC} -shared -cudart static -o "${library}" ${objects} -lcublasLt
            -Xlinker "-rpath,${cuda_root}/lib64" -Xlinker --no-undefined
    DEPENDS ${objects}
    COMMENT "Linking CUDA library lib${name}.so"
    VERBATIM)
  add_custom_target(${name} ALL DEPENDS "${library}")
endfunction()
