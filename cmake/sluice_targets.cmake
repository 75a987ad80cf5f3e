# SPDX-License-Identifier: Apache-2.0
# Three functions: a part of the library, a backend, a test.

add_library(sluice_options INTERFACE)
target_compile_features(sluice_options INTERFACE cxx_std_20)
# -ffp-contract=off and -fmad=false: a sum must not depend on whether the compiler felt like fusing it. Kernels fuse by
# name.
target_compile_options(sluice_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wno-sign-conversion;-Wshadow;-Wnon-virtual-dtor;-ffp-contract=off>
  # CMake 3.25 knows no C++20 of nvcc and drops the standard without a word. Constexpr functions of the lists (choice.h)
  # run on both sides.
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-fmad=false;--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra>
  # g++ 12 sees overlaps in std::string's operator+ (gcc bug 105651) and overflows in fmt that are not there. clang
  # and the sanitizers keep looking.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict;-Wno-stringop-overflow>
  $<$<AND:$<BOOL:${SLUICE_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>
  $<$<AND:$<BOOL:${SLUICE_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings>)
target_include_directories(sluice_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)

if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  set(sluice_sanitized ON)
else()
  set(sluice_sanitized OFF)
endif()

# What the fuzzers are to learn the branches of.
set(sluice_coverage)
if(SLUICE_FUZZ)
  set(sluice_coverage -fsanitize=fuzzer-no-link)
endif()

# sluice_add_part(core FUZZED SOURCES a.cpp b.cpp): object files that go into the library. All of src is on its include
# path; who may include whom is checked by scripts/check-includes. FUZZED parts read what nobody vouches for.
function(sluice_add_part name)
  cmake_parse_arguments(PARSE_ARGV 1 part "FUZZED" "" "SOURCES")
  add_library(sluice_${name} OBJECT ${part_SOURCES})
  set_target_properties(sluice_${name} PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(sluice_${name} PRIVATE sluice_options fmt::fmt nlohmann_json::nlohmann_json
                                               Threads::Threads)
  target_include_directories(sluice_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  if(sluice_sanitized)
    # The time of tests is spent in the library. Around it, that is tests and tools, -O0 takes half the time to compile.
    target_compile_options(sluice_${name} PRIVATE -O1)
  endif()
  if(part_FUZZED)
    target_compile_options(sluice_${name} PRIVATE ${sluice_coverage})
  endif()
  set_property(GLOBAL APPEND PROPERTY SLUICE_PARTS sluice_${name})
endfunction()

# sluice_add_backend(cpu_avx2 SYMBOL kCpuAvx2 SOURCES backend.cpp KERNELS kernels.cpp NULL no_kernels.cpp FLAGS -mavx2)
# declares a backend whose constinit object is sluice::SYMBOL, or several that share their code. KERNELS are compiled with
# FLAGS when IF holds (default ON), otherwise NULL stands in for them, so that what is missing from a build is still known
# and explained.
function(sluice_add_backend name)
  cmake_parse_arguments(PARSE_ARGV 1 backend "" "IF" "SYMBOL;SOURCES;KERNELS;NULL;FLAGS")
  if(NOT DEFINED backend_IF)
    set(backend_IF ON)
  endif()
  if(${backend_IF})
    set(kernels ${backend_KERNELS})
    set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS "${backend_FLAGS}")
  else()
    set(kernels ${backend_NULL})
  endif()
  sluice_add_part(${name} SOURCES ${backend_SOURCES} ${kernels})
  set_property(GLOBAL APPEND PROPERTY SLUICE_BACKENDS ${backend_SYMBOL})
endfunction()

# Writes the list of backends: sluice::backends().
function(sluice_write_backends file)
  get_property(symbols GLOBAL PROPERTY SLUICE_BACKENDS)
  set(text "// Written by CMake from sluice_add_backend.\n#include \"experts/backend.h\"\n\nnamespace sluice {\n\n")
  foreach(symbol IN LISTS symbols)
    string(APPEND text "extern const Backend ${symbol};\n")
  endforeach()
  list(TRANSFORM symbols PREPEND "&")
  list(JOIN symbols ", " list)
  string(APPEND text "\nstd::span<const Backend* const> backends() {\n"
                     "  static constexpr const Backend* kAll[] = {${list}};\n  return kAll;\n}\n\n}  // namespace sluice\n")
  file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
endfunction()

# sluice_add_test(format SOURCES a_test.cpp LABEL unit): a GoogleTest program named test_format, one CTest test.
function(sluice_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "LABEL" "SOURCES")
  add_executable(test_${name} ${test_SOURCES})
  target_link_libraries(test_${name} PRIVATE sluice_testing GTest::gtest GTest::gtest_main)
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  # What tests spend is spent in the library; optimising their own code further doubles the time they take to build.
  target_compile_options(test_${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  target_compile_definitions(test_${name} PRIVATE SLUICE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES LABELS "${test_LABEL}" TIMEOUT 900)
endfunction()
