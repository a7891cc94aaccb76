# The three shapes of a target. A folder of src/orbitkv is one static library with its tests beside the code.
#   orbitkv_library(base SOURCES a.cc DEPS os fmt::fmt PRIVATE_DEPS x)    -> target orbitkv_base, alias orbitkv::base
#   orbitkv_test(ring_test SOURCES ring_test.cc DEPS channel [LABELS process] [ARGS ...])
#   orbitkv_executable(orbitkv-manager SOURCES main.cc DEPS manager)
# A DEPS entry that names a folder means its library; anything else is a CMake target.

add_library(orbitkv_options INTERFACE)
target_compile_features(orbitkv_options INTERFACE cxx_std_23)
target_include_directories(orbitkv_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(orbitkv_options INTERFACE
  -Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual -fno-omit-frame-pointer
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
  # GCC 12 reports string concatenation falsely at -O3.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(ORBITKV_SANITIZE)
  target_compile_options(orbitkv_options INTERFACE -fsanitize=${ORBITKV_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(orbitkv_options INTERFACE -fsanitize=${ORBITKV_SANITIZE} -fno-sanitize-recover=all)
endif()

function(_orbitkv_link target scope)
  foreach(dep IN LISTS ARGN)
    if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/src/orbitkv/${dep})
      target_link_libraries(${target} ${scope} orbitkv_${dep})
    else()
      target_link_libraries(${target} ${scope} ${dep})
    endif()
  endforeach()
endfunction()

function(orbitkv_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(orbitkv_${name} STATIC ${ARG_SOURCES})
  add_library(orbitkv::${name} ALIAS orbitkv_${name})
  set_target_properties(orbitkv_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(orbitkv_${name} PUBLIC orbitkv_options)
  _orbitkv_link(orbitkv_${name} PUBLIC ${ARG_DEPS})
  _orbitkv_link(orbitkv_${name} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

function(orbitkv_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE orbitkv_options)
  _orbitkv_link(${name} PRIVATE ${ARG_DEPS})
endfunction()

# The folders whose tests run under ThreadSanitizer: they share memory between threads. Their tests carry the label race.
set(ORBITKV_RACE_FOLDERS os copy pool orbite channel cache store client)
add_custom_target(race_tests)
add_custom_target(fuzz_targets)

# LABELS: process for a test that starts other processes, long for one that only ./dev test-long runs. LONG_TIMEOUT, in
# seconds: ./dev test-long also runs the test as NAME_long, with ORBITKV_TEST_LONG=1 (testing/effort.h); LONG_FILTER: only
# the cases of it that such a run makes longer.
function(orbitkv_test name)
  if(NOT ORBITKV_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT;LONG_TIMEOUT;LONG_FILTER" "SOURCES;DEPS;LABELS;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  orbitkv_executable(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} GTest::gtest_main GTest::gmock)
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(folder IN_LIST ORBITKV_RACE_FOLDERS AND NOT "process" IN_LIST ARG_LABELS AND NOT "long" IN_LIST ARG_LABELS)
    list(APPEND ARG_LABELS race)
    add_dependencies(race_tests ${name})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(ARG_LONG_TIMEOUT)
    if(NOT ARG_LONG_FILTER)
      set(ARG_LONG_FILTER "*")
    endif()
    add_test(NAME ${name}_long COMMAND ${name} ${ARG_ARGS} --gtest_filter=${ARG_LONG_FILTER})
    set_tests_properties(${name}_long PROPERTIES
      TIMEOUT ${ARG_LONG_TIMEOUT} LABELS "${ARG_LABELS};long" ENVIRONMENT ORBITKV_TEST_LONG=1)
  endif()
endfunction()

# A libFuzzer target under the fuzz preset, and a test that runs its corpus (NAME_corpus/ beside the source, where there
# is one) and a short smoke run; ./dev test-long also runs it for a minute. What a run finds stays in the build folder.
function(orbitkv_fuzz name)
  if(NOT ORBITKV_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  orbitkv_executable(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzz_targets ${name})
  set(found ${CMAKE_CURRENT_BINARY_DIR}/${name}_found)
  file(MAKE_DIRECTORY ${found})
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/${name}_corpus)
  if(NOT IS_DIRECTORY ${corpus})
    set(corpus)
  endif()
  add_test(NAME ${name} COMMAND ${name} -max_total_time=5 -rss_limit_mb=2048 ${found} ${corpus})
  set_tests_properties(${name} PROPERTIES TIMEOUT 60 LABELS fuzz)
  add_test(NAME ${name}_long COMMAND ${name} -max_total_time=60 -rss_limit_mb=2048 ${found} ${corpus})
  set_tests_properties(${name}_long PROPERTIES TIMEOUT 180 LABELS "fuzz;long")
endfunction()
