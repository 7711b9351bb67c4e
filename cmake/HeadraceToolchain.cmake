# Compiler flags, sanitizers, linker and compiler cache, set once for the whole tree.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(HEADRACE_SANITIZE "" CACHE STRING "address, thread, fuzzer or empty")

add_compile_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-unknown-pragmas
                    -Werror=return-type)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False alarms of g++ 12 in inlined std::string and std::tuple code (GCC bugs 105329, 105651).
  add_compile_options(-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Kernels ask for unrolling where nvcc can do it; hundreds of remarks say where clang did not.
  # And base/exact_float.h does not reach templates that were read before it: without this, kernels
  # for AVX2 and AVX-512 fused a * b + c, and their bits differed from those of the others.
  add_compile_options(-Wno-pass-failed -ffp-contract=off)
endif()
option(HEADRACE_WERROR "Treat warnings as errors" OFF)
if(HEADRACE_WERROR)
  add_compile_options(-Werror)
endif()

if(HEADRACE_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(HEADRACE_SANITIZE STREQUAL "thread")
  # libgomp is not instrumented: OpenMP regions run serially here (base/parallel.h).
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(HEADRACE_SANITIZE STREQUAL "fuzzer")
  # clang only: libFuzzer is not part of GCC. Debian's clang comes without OpenMP.
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined
                      -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(NOT HEADRACE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "HEADRACE_SANITIZE must be address, thread, fuzzer or empty")
endif()

if(NOT HEADRACE_SANITIZE MATCHES "thread|fuzzer")
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()

find_program(HEADRACE_CCACHE ccache)
if(HEADRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_CURRENT_LIST_DIR}/ccache.sh" ${HEADRACE_CCACHE})
endif()

find_program(HEADRACE_MOLD mold)
find_program(HEADRACE_LLD ld.lld)
if(HEADRACE_MOLD)
  add_link_options(-fuse-ld=mold)
elseif(HEADRACE_LLD)
  add_link_options(-fuse-ld=lld)
endif()
