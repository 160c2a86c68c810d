# Compiler settings shared by every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

include(CheckIPOSupported)
check_ipo_supported(RESULT FXPRESS_HAS_LTO OUTPUT FXPRESS_LTO_REASON LANGUAGES CXX)

function(fxpress_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow)
  if(FXPRESS_HAS_LTO AND CMAKE_BUILD_TYPE STREQUAL "Release")
    set_target_properties(${target} PROPERTIES INTERPROCEDURAL_OPTIMIZATION ON)
  endif()
  if(FXPRESS_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${FXPRESS_SANITIZERS} ${FXPRESS_SANITIZE_FLAGS}
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${FXPRESS_SANITIZERS})
  endif()
endfunction()
