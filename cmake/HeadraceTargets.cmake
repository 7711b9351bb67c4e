# headrace_embed(TARGET FUNCTION FILES...): builds files of the repository into the target:
# `std::span<const headrace::EmbeddedFile> headrace::FUNCTION()`, in the order given. Made by
# EmbedFiles.cmake when one of them has changed.
function(headrace_embed target function)
  list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/" OUTPUT_VARIABLE inputs)
  list(JOIN inputs "," joined)
  set(output "${CMAKE_CURRENT_BINARY_DIR}/${function}.cc")
  set(script "${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${output}" "-DFUNCTION=${function}" "-DINPUTS=${joined}"
            -P "${script}"
    DEPENDS ${inputs} "${script}"
    VERBATIM)
  target_sources(${target} PRIVATE "${output}")
  set_source_files_properties("${output}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# headrace_shared_headers(NAME LIBRARY|PROGRAM HEADERS... [LINK TARGETS...]): precompiles these headers and the common ones
# once, for all targets that name it in headrace_precompile(): reading headers is most of the compile
# time. LIBRARY or PROGRAM: whose code generation options it has. Only GCC takes a precompiled header of
# a target with other definitions.
set(HEADRACE_COMMON_HEADERS
    <fmt/format.h> <algorithm> <array> <atomic> <cerrno> <chrono> <cmath> <condition_variable> <cstring>
    <deque> <filesystem> <fstream> <functional> <map> <memory> <mutex> <numeric> <optional> <set> <span>
    <string> <thread> <vector>)
function(headrace_shared_headers name kind)
  cmake_parse_arguments(PARSE_ARGV 2 shared "" "" "LINK")
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  set(source "${PROJECT_BINARY_DIR}/${name}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "")
  add_library(${name} OBJECT "${source}")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
  target_link_libraries(${name} PRIVATE Threads::Threads fmt::fmt spdlog::spdlog ${shared_LINK})
  if(TARGET OpenMP::OpenMP_CXX)
    target_link_libraries(${name} PRIVATE OpenMP::OpenMP_CXX)
  endif()
  if(kind STREQUAL "PROGRAM")
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${name} PRIVATE ${CMAKE_CXX_COMPILE_OPTIONS_PIE})
  endif()
  headrace_precompile(${name} "" ${shared_UNPARSED_ARGUMENTS})
endfunction()

# headrace_precompile(TARGET SHARED HEADERS...): the precompiled header of the target is that of the
# target SHARED, or, where that is not, one of its own with HEADERS and the common ones.
function(headrace_precompile target shared)
  if(TARGET "${shared}")
    target_precompile_headers(${target} REUSE_FROM ${shared})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN} ${HEADRACE_COMMON_HEADERS})
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # lets ccache work with it
  endif()
endfunction()

# headrace_optimize_lightly(TARGET [FILES...]): for sources, all or these patterns of the folder, that
# are compiled more often than they run: saves a third of their compile time.
function(headrace_optimize_lightly target)
  if(NOT ARGN)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    return()
  endif()
  foreach(pattern ${ARGN})
    file(GLOB files CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${pattern}")
    if(NOT files)
      message(FATAL_ERROR "No file of ${CMAKE_CURRENT_SOURCE_DIR} is named ${pattern}")
    endif()
    set_property(SOURCE ${files} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
  endforeach()
endfunction()

# headrace_library(NAME [OWN_HEADERS] [PRECOMPILE HEADERS...] [LINK TARGETS...]): a static library of all
# .cc files below the folder. Sources are globbed so that a file cannot be forgotten. OWN_HEADERS: it
# does not share the precompiled header of the other libraries.
function(headrace_library name)
  cmake_parse_arguments(PARSE_ARGV 1 library "OWN_HEADERS" "" "PRECOMPILE;LINK")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  set(target headrace_${name})
  add_library(${target} STATIC ${sources})
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
  target_link_libraries(${target} PUBLIC ${library_LINK})
  set(shared headrace_library_headers)
  if(library_OWN_HEADERS)
    set(shared "")
  endif()
  headrace_precompile(${target} "${shared}" ${library_PRECOMPILE})
endfunction()

# headrace_tests(NAME DEPS... [SHARED_HEADERS TARGET] [LABEL LABEL] [SHARDS COUNT] [ALONE PATTERN]): one
# GoogleTest binary of all .cc files of the folder and the ctest entry NAME with the label, by default
# unit. Suites named *Slow stay out of it: see headrace_slow_tests(). SHARDS: as many entries, NAME_1
# and so on, share the tests. ALONE: the tests of this pattern measure time or a limit of the machine;
# they have an entry NAME_alone, beside which ctest runs nothing else.
function(headrace_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 tests "" "SHARED_HEADERS;LABEL;SHARDS;ALONE" "")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  if(NOT sources)
    return()
  endif()
  set(target ${name}_tests)
  add_executable(${target} ${sources} "${PROJECT_SOURCE_DIR}/tests/support/tsan_suppressions.cc")
  target_link_libraries(${target} PRIVATE ${tests_UNPARSED_ARGUMENTS} GTest::gmock GTest::gtest_main)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  if(NOT tests_SHARED_HEADERS)
    set(tests_SHARED_HEADERS headrace_test_headers)
  endif()
  # GoogleTest and fmt are most of a test's compile time.
  headrace_precompile(${target} ${tests_SHARED_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)
  headrace_optimize_lightly(${target})
  target_compile_definitions(${target} PRIVATE HEADRACE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                               HEADRACE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  if(NOT tests_LABEL)
    set(tests_LABEL unit)
  endif()
  set(left_out "*Slow.*")
  if(tests_ALONE)
    string(APPEND left_out ":${tests_ALONE}")
    headrace_test_entry(${name}_alone ${target} "${tests_ALONE}-*Slow.*" ${tests_LABEL})
    set_tests_properties(${name}_alone PROPERTIES RUN_SERIAL ON)
  endif()
  if(NOT tests_SHARDS)
    headrace_test_entry(${name} ${target} "-${left_out}" ${tests_LABEL})
    return()
  endif()
  foreach(shard RANGE 1 ${tests_SHARDS})
    headrace_test_entry(${name}_${shard} ${target} "-${left_out}" ${tests_LABEL})
    math(EXPR index "${shard} - 1")
    set_tests_properties(${name}_${shard} PROPERTIES COST ${HEADRACE_LONG_TEST} ENVIRONMENT
                         "GTEST_TOTAL_SHARDS=${tests_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# The cost of entries that take the longest: ctest starts them first, so that none is left at the end.
set(HEADRACE_LONG_TEST 100)

# headrace_test_entry(NAME TARGET FILTER LABEL): a ctest entry for these tests of a GoogleTest binary.
function(headrace_test_entry name target filter label)
  add_test(NAME ${name} COMMAND ${target} "--gtest_filter=${filter}"
           WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 LABELS ${label})
endfunction()

# headrace_slow_tests(NAME): a ctest entry with the label slow for the *Slow suites of the binary that
# headrace_tests(NAME) made.
function(headrace_slow_tests name)
  add_test(NAME ${name}_slow COMMAND ${name}_tests --gtest_filter=*Slow.*
           WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name}_slow PROPERTIES TIMEOUT 1800 LABELS slow)
endfunction()

# headrace_command_test(MODULE [NAME NAME] [TIMEOUT SECONDS] [LABEL LABEL] [ENVIRONMENT VAR=VALUE]):
# a ctest entry (by default MODULE without its _test) for the Python unit tests of this folder's
# MODULE.py, which drive the `headrace` command from outside.
function(headrace_command_test module)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "NAME;TIMEOUT;LABEL;ENVIRONMENT" "")
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  if(NOT test_NAME)
    string(REGEX REPLACE "_test$" "" test_NAME ${module})
  endif()
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 600)
  endif()
  if(NOT test_LABEL)
    set(test_LABEL e2e)
  endif()
  add_test(NAME ${test_NAME} COMMAND ${Python3_EXECUTABLE} -m unittest -v ${module}
           WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
  # Without a GPU, whatever machine this is: the numbers and messages of the CPU are what is checked.
  set(environment "HEADRACE_COMMAND=$<TARGET_FILE:headrace>" PYTHONDONTWRITEBYTECODE=1
                  HEADRACE_CUDA_LIBRARY= ${test_ENVIRONMENT})
  set_tests_properties(${test_NAME} PROPERTIES TIMEOUT ${test_TIMEOUT} LABELS ${test_LABEL}
                       ENVIRONMENT "${environment}")
endfunction()

# headrace_gpu_tests(NAME FILTER): a ctest entry with the label gpu for the suites of the binary that
# headrace_tests(NAME) made which need the real GPU; skipped, with the reason, where there is none.
function(headrace_gpu_tests name filter)
  add_test(NAME ${name}_gpu COMMAND ${name}_tests --gtest_filter=${filter}
           WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set(environment HEADRACE_TEST_GPU=1
                  "HEADRACE_CUDA_LIBRARY=${PROJECT_BINARY_DIR}/bin/libheadrace_cuda.so")
  set_tests_properties(${name}_gpu PROPERTIES TIMEOUT 600 LABELS gpu
                       ENVIRONMENT "${environment}" SKIP_REGULAR_EXPRESSION "SKIPPED:")
endfunction()
