# Small targets: one library a room, direct dependencies only; include lines start at the root.
include(GNUInstallDirs)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(QE_CCACHE ccache)
if(QE_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${QE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${QE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${QE_CCACHE})
endif()

# Dequantized values are compared bit for bit: a product and a sum are two roundings everywhere, and
# where a fused multiply-add is wanted it is written as one.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>)

add_library(qe_warnings INTERFACE)
target_compile_options(qe_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wno-missing-field-initializers>)

# qe_patience(120 seconds): what a test may take, in `seconds`; everything is slower under a sanitizer.
function(qe_patience seconds out)
  if(QE_SANITIZE)
    math(EXPR seconds "${seconds} * 6")
  endif()
  set(${out} ${seconds} PARENT_SCOPE)
endfunction()

if(QE_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${QE_SANITIZE};-fno-omit-frame-pointer;-g1>")
  add_link_options(-fsanitize=${QE_SANITIZE})
  if(QE_SANITIZE MATCHES address)
    add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=undefined;-fno-sanitize-recover=undefined>")
    add_link_options(-fsanitize=undefined)
  endif()
endif()

# Everything is built with coverage for libFuzzer; only the targets of tests/fuzz link its main.
if(QE_BUILD_FUZZERS)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link,address,undefined;-fno-sanitize-recover=undefined;-fno-omit-frame-pointer;-g1>")
  add_link_options(-fsanitize=address,undefined)
endif()

# qe_add_library(kv SOURCES a.cpp b.cpp DEPS qengine::base)  ->  qengine::kv
function(qe_add_library room)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(qe_${room} STATIC ${A_SOURCES})
  add_library(qengine::${room} ALIAS qe_${room})
  target_include_directories(qe_${room} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(qe_${room} PUBLIC ${A_DEPS} PRIVATE qe_warnings ${A_PRIVATE_DEPS})
endfunction()

# qe_add_test(kv_block_manager SOURCES block_manager_test.cpp DEPS qengine::kv [LABELS unit slow gpu])
# Runs in the source tree; QE_GOLDEN and QE_FIXTURES tell where test data lies (tests/support/paths.hpp).
function(qe_add_test name)
  cmake_parse_arguments(A "NO_MAIN" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT QE_BUILD_TESTS)
    return()
  endif()
  add_executable(test_${name} ${A_SOURCES})
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(test_${name} PRIVATE ${A_DEPS} GTest::gtest GTest::gmock qe_warnings)
  if(NOT A_NO_MAIN)
    target_link_libraries(test_${name} PRIVATE GTest::gtest_main)
  endif()
  target_compile_definitions(test_${name} PRIVATE QE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" QE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND test_${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  qe_patience(${A_TIMEOUT} seconds)
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${seconds})
endfunction()
