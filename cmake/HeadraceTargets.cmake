# headrace_library(NAME DEPS...): a static library of all .cc files below the folder.
# Sources are globbed so that a file cannot be forgotten.
function(headrace_library name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  set(target headrace_${name})
  if(sources)
    add_library(${target} STATIC ${sources})
    target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
    target_link_libraries(${target} PUBLIC ${ARGN})
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
    target_link_libraries(${target} INTERFACE ${ARGN})
  endif()
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
  target_precompile_headers(${target} PRIVATE <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h> <string>
                            <vector> <memory> <functional> <map>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # lets ccache work with it
  endif()
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
