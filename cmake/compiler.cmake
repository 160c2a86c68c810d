# Compiler settings shared by every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# Compile through ccache if it is installed.
find_program(FXPRESS_CCACHE ccache)
if(FXPRESS_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${FXPRESS_CCACHE})
endif()

function(fxpress_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow)
  if(FXPRESS_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${FXPRESS_SANITIZERS} ${FXPRESS_SANITIZE_FLAGS}
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${FXPRESS_SANITIZERS})
  endif()
endfunction()

# Compiles all files of a component as one file, and all small components as one file, because headers
# take most of the time, above all torch's. serde becomes two files, so that two cores have equal work.
function(fxpress_unite_components target)
  if(NOT FXPRESS_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    string(REGEX MATCH "^csrc/([a-z]+)/(encode)?" _ ${source})
    set(group ${CMAKE_MATCH_1}_${CMAKE_MATCH_2})
    if(group MATCHES "^(aten|archive|capture|decompose|export|install|py|tensor|tracking)_"
       OR (target MATCHES "^_aten" AND group STREQUAL fx_))
      set(group small)
    endif()
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
