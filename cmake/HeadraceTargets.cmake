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

# headrace_precompile(TARGET HEADERS...): precompiles these headers and those that nearly every source
# includes: reading headers is most of the compile time.
function(headrace_precompile target)
  target_precompile_headers(
    ${target} PRIVATE ${ARGN} <fmt/format.h> <algorithm> <array> <atomic> <chrono>
    <condition_variable> <functional> <map> <memory> <mutex> <optional> <span> <string> <thread>
    <vector>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # lets ccache work with it
  endif()
endfunction()

# headrace_optimize_lightly(TARGET): for sources that are compiled more often than they run: saves a
# third of their compile time.
function(headrace_optimize_lightly target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# headrace_library(NAME [PRECOMPILE HEADERS...] [LINK TARGETS...]): a static library of all .cc files
# below the folder. Sources are globbed so that a file cannot be forgotten.
function(headrace_library name)
  cmake_parse_arguments(PARSE_ARGV 1 library "" "" "PRECOMPILE;LINK")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  set(target headrace_${name})
  add_library(${target} STATIC ${sources})
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
  target_link_libraries(${target} PUBLIC ${library_LINK})
  headrace_precompile(${target} ${library_PRECOMPILE})
endfunction()

# headrace_tests(NAME DEPS...): one GoogleTest binary of all .cc files of the folder, one ctest
# entry with the label unit. Suites named *Slow stay out of it: see headrace_slow_tests().
function(headrace_tests name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  if(NOT sources)
    return()
  endif()
  set(target ${name}_tests)
  add_executable(${target} ${sources} "${PROJECT_SOURCE_DIR}/tests/support/tsan_suppressions.cc")
  target_link_libraries(${target} PRIVATE ${ARGN} GTest::gmock GTest::gtest_main)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  # GoogleTest and fmt are most of a test's compile time.
  headrace_precompile(${target} <gmock/gmock.h> <gtest/gtest.h>)
  headrace_optimize_lightly(${target})
  target_compile_definitions(${target} PRIVATE HEADRACE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                               HEADRACE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${target} --gtest_filter=-*Slow.*
           WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 LABELS unit)
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
