# harmony_library, harmony_program, harmony_test: the only ways targets are declared in this tree.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # What a precompiled header needs to be cached.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

add_library(harmony_warnings INTERFACE)
target_compile_options(harmony_warnings INTERFACE -Wall -Wextra -Werror)

if(HARMONY_SANITIZE)
  # gcc's flow analysis sees ghosts in instrumented code.
  add_compile_options(-fsanitize=${HARMONY_SANITIZE} -fno-omit-frame-pointer -O1 -g1
                      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(HARMONY_SANITIZE MATCHES "undefined")
    # Checks of every pointer used treble the time to compile. AddressSanitizer finds the null ones.
    add_compile_options(-fno-sanitize=null,vptr,alignment,object-size)
  endif()
  add_link_options(-fsanitize=${HARMONY_SANITIZE})
endif()

if(CMAKE_BUILD_TYPE STREQUAL Debug)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
endif()

if(HARMONY_UNITY)
  # A class in a .cc may have members of that file's own types.
  add_compile_options(-Wno-subobject-linkage)
endif()

if(HARMONY_CHECK_ODR)
  # The compiler's own form of the code, where types can be compared, beside what is linked as usual.
  add_compile_options(-g1 -flto=auto -ffat-lto-objects)
  add_link_options(-fno-lto)
endif()

if(HARMONY_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    message(FATAL_ERROR "HARMONY_FUZZ needs clang: use the preset 'fuzz'")
  endif()
  # Coverage for libFuzzer in every library. Warnings are the business of the release compiler.
  add_compile_options(-fsanitize=fuzzer-no-link -fno-sanitize-recover=all -Wno-error)
endif()

# What holds for the product's targets, and not for those of the laboratory.
function(harmony_product_target name)
  if(NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/(bench|tests)")
    set_target_properties(${name} PROPERTIES UNITY_BUILD ${HARMONY_UNITY} UNITY_BUILD_BATCH_SIZE 12)
    set_property(GLOBAL APPEND PROPERTY HARMONY_OBJECTS $<TARGET_OBJECTS:${name}>)
  endif()
endfunction()

# harmony_library(NAME SOURCES a.cc ... [DEPS t ...])
# One static library per folder; sources are listed, not globbed.
function(harmony_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE harmony_warnings)
  harmony_product_target(${name})
endfunction()

# harmony_program(NAME SOURCES a.cc ... [DEPS t ...])  -> build/bin/NAME
function(harmony_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} harmony_warnings)
  harmony_product_target(${name})
endfunction()

# Target odr_check: one name for two classes, anywhere in libraries and programs, is an error. Merges the types of all
# objects, which is what the linker does before it would generate code, and no code: that would take ten times as long.
function(harmony_odr_check)
  get_property(objects GLOBAL PROPERTY HARMONY_OBJECTS)
  set(merged ${CMAKE_BINARY_DIR}/odr_check.o)
  add_custom_command(OUTPUT ${merged} DEPENDS ${objects} COMMAND_EXPAND_LISTS VERBATIM
    COMMENT "Comparing the types of all objects"
    COMMAND ${CMAKE_CXX_COMPILER} -r -nostdlib -fuse-ld=bfd -Wl,-z,muldefs -O0 -flto=auto -flinker-output=rel
            -Wodr -Werror=odr -o ${merged} ${objects})
  add_custom_target(odr_check DEPENDS ${merged})
endfunction()

# What the sanitizer presets build and run: the tests labelled pure or sanitize. For ThreadSanitizer
# those labelled sanitize are enough.
add_custom_target(sanitized_tests)
add_custom_target(threaded_tests)
# What the debug preset builds and runs: the tests labelled pure.
add_custom_target(pure_tests)

function(harmony_test_options name)
  target_link_libraries(${name} PRIVATE GTest::gmock GTest::gtest_main harmony_warnings)
  target_compile_options(${name} PRIVATE -pthread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${name} PRIVATE -fpch-preprocess)  # for ccache
  endif()
  if(HARMONY_SANITIZE AND NOT HARMONY_FUZZ)
    # What is tested is optimised; optimising the tests costs more than they gain.
    target_compile_options(${name} PRIVATE -O0)
  endif()
endfunction()

# Half of what a test's compilation takes is GoogleTest's headers: precompiled, for all tests. For
# the libraries it does not pay. An executable, since compiled as such.
function(harmony_test_headers)
  add_executable(harmony_test_headers ${CMAKE_SOURCE_DIR}/tests/support/test_headers.cc)
  harmony_test_options(harmony_test_headers)
  target_precompile_headers(harmony_test_headers PRIVATE
    <string> <vector> [["absl/status/statusor.h"]] [["absl/strings/str_cat.h"]]
    [["gmock/gmock.h"]] [["gtest/gtest.h"]])
endfunction()

# harmony_test(NAME SOURCES a.cc ... [DEPS t ...] [LABELS l ...] [TIMEOUT seconds])
# A GoogleTest binary, registered with ctest as one test. Labels: pure (no threads, also run under
# AddressSanitizer), long (not run without optimisation), sanitize (has threads
# or processes, also run under both sanitizers), torch, process (starts real processes).
function(harmony_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  harmony_test_options(${name})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  target_precompile_headers(${name} REUSE_FROM harmony_test_headers)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  # Instrumented or unoptimised code is several times as slow, and other machines are slower still.
  if(HARMONY_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL Debug)
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if("pure" IN_LIST ARG_LABELS OR "sanitize" IN_LIST ARG_LABELS)
    add_dependencies(sanitized_tests ${name})
  endif()
  if("pure" IN_LIST ARG_LABELS)
    add_dependencies(pure_tests ${name})
  endif()
  if("sanitize" IN_LIST ARG_LABELS)
    add_dependencies(threaded_tests ${name})
  endif()
endfunction()
