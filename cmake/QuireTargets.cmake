# Helpers that give every target of ours the same warnings, sanitizers and include root.

find_program(QUIRE_CCACHE ccache)
if(QUIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # pch_defines and time_macros let ccache cache compilations that use precompiled headers. ccache needs both.
  set(CMAKE_C_COMPILER_LAUNCHER ${QUIRE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${QUIRE_CCACHE})
endif()

find_program(QUIRE_MOLD mold)
if(QUIRE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Most libraries are for executables only, so they are compiled with the option of executables.
# Precompiled headers fit only sources that are compiled with the same one.
set(CMAKE_CXX_COMPILE_OPTIONS_PIC ${CMAKE_CXX_COMPILE_OPTIONS_PIE})

add_library(quire_options INTERFACE)
target_include_directories(quire_options INTERFACE ${PROJECT_SOURCE_DIR})
set(quire_cxx_options -pthread -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers
    # The compiler must not contract a product and a sum into a fused multiply-add, because every
    # ISA path and compiler must give the same bits. The sources write the wanted fused
    # multiply-adds explicitly.
    -ffp-contract=off)
# nvcc knows none of these options.
target_compile_options(quire_options INTERFACE "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${quire_cxx_options}>")
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(quire_options INTERFACE -Wthread-safety)
endif()
if(QUIRE_SANITIZE)
  target_compile_options(quire_options INTERFACE -fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(quire_options INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()
if(QUIRE_SANITIZE MATCHES "address")
  # These assertions catch an index that is past a vector's end but within its capacity.
  # AddressSanitizer does not catch it.
  target_compile_definitions(quire_options INTERFACE _GLIBCXX_ASSERTIONS)
endif()
if(QUIRE_BUILD_FUZZERS)
  target_compile_options(quire_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Tests get no optimisation, because a test is compiled about as often as it runs. Only the code under test needs it.
# Nor do tests need what instruments undefined behaviour and coverage: both are for the code under test. A test links
# these options after quire_options, because a compiler obeys the last option. CMake puts a target's own options before
# those of its libraries.
add_library(quire_test_options INTERFACE)
set(quire_test_cxx_options $<$<CONFIG:RelWithDebInfo>:-O0>)
if(QUIRE_SANITIZE MATCHES undefined)
  list(APPEND quire_test_cxx_options -fno-sanitize=undefined)
endif()
if(QUIRE_BUILD_FUZZERS)
  list(APPEND quire_test_cxx_options -fno-sanitize=fuzzer-no-link)
endif()
target_compile_options(quire_test_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${quire_test_cxx_options}>")

# quire_precompiled(NAME KIND): gives the sources of a target the headers that most sources include, compiled once
# for each KIND of target: `libraries` (programs too), `shared` for shared libraries, and `tests`. The kinds have
# different options, and the headers fit only one set of options. A source still includes what it uses: the build of
# the preset thread-safety, which joins and precompiles nothing, fails where an include is missing. The other presets
# do not notice.
option(QUIRE_PRECOMPILE "Precompile the headers that most sources include" ON)
function(quire_precompiled name kind)
  if(NOT QUIRE_PRECOMPILE)
    return()
  endif()
  get_property(first GLOBAL PROPERTY quire_precompiled_${kind})
  if(first)
    target_precompile_headers(${name} REUSE_FROM ${first})
    return()
  endif()
  set_property(GLOBAL PROPERTY quire_precompiled_${kind} ${name})
  target_precompile_headers(${name} PRIVATE
    <algorithm> <array> <chrono> <functional> <memory> <optional> <span> <string> <string_view> <unordered_map>
    <utility> <vector> <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
    <absl/strings/str_format.h> <absl/time/time.h>)
  if(kind STREQUAL tests)
    target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h> <rapidcheck/gtest.h>)
  endif()
endfunction()

# quire_apart(FILES...): keeps the files out of unity builds, which join a target's sources into a
# few units (CMAKE_UNITY_BUILD, used by the presets for sanitizers). A file needs this if another
# source of its target has the same private names.
function(quire_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# quire_shared(NAME): compiles a target for shared libraries.
function(quire_shared name)
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fPIC;-fno-semantic-interposition>")
endfunction()

# quire_library(NAME SOURCES a.cc b.cc [APART c.cc] [DEPS x y] [PRIVATE_DEPS z] [SHARED]): The
# library's headers need DEPS; only its sources need PRIVATE_DEPS. Without SOURCES the library is
# header-only. Every library is static. SHARED means that backend modules contain it.
function(quire_library name)
  cmake_parse_arguments(ARG "SHARED" "" "SOURCES;APART;DEPS;PRIVATE_DEPS" ${ARGN})
  quire_apart(${ARG_APART})
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES} ${ARG_APART})
    target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE quire_options ${ARG_PRIVATE_DEPS})
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
    if(ARG_SHARED)
      quire_shared(${name})
      quire_precompiled(${name} shared)
    else()
      quire_precompiled(${name} libraries)
    endif()
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR})
  endif()
endfunction()

# quire_binary(NAME SOURCES a.cc [DEPS x y])
function(quire_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE quire_options ${ARG_DEPS})
  quire_precompiled(${name} libraries)
endfunction()

# Builds the tests labelled `threads`, which run under ThreadSanitizer.
add_custom_target(thread_tests)

# quire_test(NAME SOURCES a.cc [APART b.cc] [DEPS x y] [LABELS l] [TIMEOUT s]): one GoogleTest
# binary, one ctest entry.
function(quire_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;APART;DEPS;LABELS" ${ARGN})
  quire_apart(${ARG_APART})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(QUIRE_SANITIZE)
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
  endif()
  add_executable(${name} ${ARG_SOURCES} ${ARG_APART})
  target_link_libraries(${name} PRIVATE quire_options quire_test_options ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  quire_precompiled(${name} tests)
  list(APPEND ARG_LABELS ${QUIRE_HALF})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=0 WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  add_dependencies(${QUIRE_HALF} ${name})
  if("threads" IN_LIST ARG_LABELS)
    add_dependencies(thread_tests ${name})
  endif()
endfunction()

# quire_test_on_the_other_libm(NAME): adds a second ctest entry of a test, in which glibc uses its
# math functions for processors without FMA. The results of these functions differ in their last
# bits. The environment variable has an effect only on x86-64 with glibc.
function(quire_test_on_the_other_libm name)
  get_test_property(${name} TIMEOUT timeout)
  get_test_property(${name} LABELS labels)
  add_test(NAME ${name}_other_libm COMMAND ${name} --gtest_brief=0 WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # Both would write the same XML file at once.
  set_tests_properties(${name} ${name}_other_libm PROPERTIES RESOURCE_LOCK ${name})
  set_tests_properties(${name}_other_libm PROPERTIES TIMEOUT ${timeout} LABELS "${labels}"
                       ENVIRONMENT GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX2_Usable)
endfunction()

# Every fuzz target.
add_custom_target(fuzzers)

# quire_fuzzer(NAME SOURCES a.cc [DEPS x y]): a libFuzzer target, only with QUIRE_BUILD_FUZZERS.
function(quire_fuzzer name)
  if(NOT QUIRE_BUILD_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE quire_options ${ARG_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  add_dependencies(fuzzers ${name})
  add_dependencies(${QUIRE_HALF} ${name})
endfunction()

# Compiles the CUDA kernels among a target's sources: by nvcc for GPUs, or by the C++ compiler for
# the emulator.
function(quire_cuda_sources target)
  list(FILTER ARGN INCLUDE REGEX "\\.cu$")
  if(QUIRE_CUDA)
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${QUIRE_CUDA_ARCHITECTURES}")
  elseif(ARGN)
    set_source_files_properties(${ARGN} PROPERTIES
      LANGUAGE CXX
      # `#pragma unroll` is for nvcc. clang tries to follow it, and warns where it cannot.
      # -Wno-psabi: kernels get structs with the alignment of a TensorMap by value, which GCC notes.
      COMPILE_OPTIONS "-Wno-unknown-pragmas;-Wno-psabi;$<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>")
  endif()
  if(NOT QUIRE_CUDA)
    target_link_libraries(${target} PUBLIC quire_cuda_emulator)
  endif()
endfunction()

# quire_cuda_library(NAME SOURCES a.cu b.cc [DEPS x y] [PRIVATE_DEPS z] [HOPPER]): kernels and the
# code that launches them. A QUIRE_CUDA build compiles them for GPUs, any other build for the
# emulator. HOPPER means that the kernels need features that only sm_90a has.
function(quire_cuda_library name)
  cmake_parse_arguments(ARG "HOPPER" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  quire_library(${name} SHARED SOURCES ${ARG_SOURCES} DEPS quire_cuda_device ${ARG_DEPS} PRIVATE_DEPS ${ARG_PRIVATE_DEPS})
  if(ARG_HOPPER)
    set(QUIRE_CUDA_ARCHITECTURES 90a)
  endif()
  quire_cuda_sources(${name} ${ARG_SOURCES})
endfunction()

# Builds the tests of the CUDA kernels, which run on a GPU or on the emulator.
add_custom_target(cuda_tests)

# quire_cuda_test(NAME SOURCES a_test.cu [DEPS x y] [TIMEOUT s] [HOPPER]): one GoogleTest binary
# whose kernels run on a GPU in a QUIRE_CUDA build, and otherwise on the emulator. The label
# `threads` is useful because ThreadSanitizer sees each emulated CUDA thread as a thread. HOPPER
# means that the test needs features that only sm_90a has.
function(quire_cuda_test name)
  cmake_parse_arguments(ARG "HOPPER" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  quire_test(${name} SOURCES ${ARG_SOURCES} DEPS quire_cuda_testing ${ARG_DEPS} LABELS threads
             TIMEOUT ${ARG_TIMEOUT})
  add_dependencies(cuda_tests ${name})
  if(ARG_HOPPER)
    set(QUIRE_CUDA_ARCHITECTURES 90a)
  endif()
  quire_cuda_sources(${name} ${ARG_SOURCES})
endfunction()
