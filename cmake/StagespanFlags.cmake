# Compiler and linker flags of every target, in one place.
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)
include(CheckIPOSupported)

# What the sources do not compile for is said at once, in one sentence.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "stagespan: builds on Linux only, not on ${CMAKE_SYSTEM_NAME}: use a Linux machine or container.")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11)
  message(FATAL_ERROR "stagespan: needs g++ 11 or later, and ${CMAKE_CXX_COMPILER} is g++ ${CMAKE_CXX_COMPILER_VERSION}: "
                      "install a newer one and name it in the variable CXX.")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF) # there are none, and not every compiler has a scanner
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

check_cxx_compiler_flag(-fno-plt STAGESPAN_HAS_NO_PLT)

# A thread's own data is read in every span: initial-exec makes that one load where the default
# for a shared library is a function call. Only glibc keeps room for it in libraries loaded late;
# thread_state.h looks at the macro.
check_cxx_source_compiles(
  "#include <features.h>
   #ifndef __GLIBC__
   #error other C library
   #endif
   int main() { return 0; }"
  STAGESPAN_HAS_GLIBC)

if(STAGESPAN_LTO AND NOT STAGESPAN_SANITIZE)
  check_ipo_supported(RESULT STAGESPAN_HAS_LTO OUTPUT STAGESPAN_LTO_PROBLEM LANGUAGES CXX)
  if(NOT STAGESPAN_HAS_LTO)
    message(STATUS "stagespan: no link-time optimisation: ${STAGESPAN_LTO_PROBLEM}")
  endif()
else()
  set(STAGESPAN_HAS_LTO OFF)
endif()

function(stagespan_target_flags target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor)
  if(STAGESPAN_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(STAGESPAN_HAS_NO_PLT)
    target_compile_options(${target} PRIVATE -fno-plt)
  endif()
  if(STAGESPAN_HAS_GLIBC)
    target_compile_options(${target} PRIVATE -ftls-model=initial-exec)
    target_compile_definitions(${target} PRIVATE STAGESPAN_HAS_GLIBC)
  endif()
  if(STAGESPAN_HAS_LTO)
    set_target_properties(${target} PROPERTIES INTERPROCEDURAL_OPTIMIZATION ON)
  endif()
  if(STAGESPAN_SANITIZE)
    # -O1 with frames keeps reports readable; -g names the lines.
    target_compile_options(
      ${target} PRIVATE -fsanitize=${STAGESPAN_SANITIZE} -fno-omit-frame-pointer
                        -fno-sanitize-recover=all -g -O1)
    target_link_options(${target} PUBLIC -fsanitize=${STAGESPAN_SANITIZE})
  endif()
endfunction()

# An extension that depends on libc alone: the C++ runtime is linked in and kept to itself.
function(stagespan_link_to_nothing target)
  set(CMAKE_REQUIRED_LINK_OPTIONS -static-libstdc++ -static-libgcc)
  check_cxx_source_compiles(
    "#include <string>
     int main(int argc, char**) { return static_cast<int>(std::to_string(argc).size()) - 1; }"
    STAGESPAN_HAS_STATIC_RUNTIME)
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
  if(STAGESPAN_HAS_STATIC_RUNTIME)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
  else()
    message(WARNING "stagespan: no static C++ runtime here (libstdc++.a); the extension will need "
                    "the shared one. Install your distribution's libstdc++-static to change that.")
  endif()
  target_link_options(
    ${target} PRIVATE -Wl,--as-needed -Wl,-z,relro -Wl,-z,now
                      "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map")
  # pybind11's bookkeeping is shared by all extensions of one compiler; a name of our own keeps
  # this extension, with its private C++ runtime, out of torch's.
  target_compile_definitions(${target} PRIVATE PYBIND11_COMPILER_TYPE="_stagespan")
endfunction()
