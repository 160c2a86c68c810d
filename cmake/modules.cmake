# The two extension modules.
#   _native    pybind11 from PyPI, no libtorch: runs with any torch.
#   _aten_213  torch's headers and torch's own pybind11: one module for each minor version of torch,
#              here for 2.13. `fxpress._torch.aten` loads the module for the imported torch.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(pybind11 3 CONFIG REQUIRED)

# pip builds in a new environment each time. Copies of pybind11's headers keep their paths and times,
# so that the next build of the same sources compiles nothing.
set(copied ${CMAKE_CURRENT_BINARY_DIR}/include)
get_target_property(found pybind11::pybind11_headers INTERFACE_INCLUDE_DIRECTORIES)
file(GLOB_RECURSE headers RELATIVE ${found} ${found}/pybind11/*.h)
foreach(header IN LISTS headers)
  configure_file(${found}/${header} ${copied}/${header} COPYONLY)
endforeach()
set_target_properties(pybind11::pybind11_headers PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES ${copied} INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${copied})

# See csrc/py/exiting_thread.cpp.
set(keep_exiting_threads LINKER:--wrap=__gxx_personality_v0)

pybind11_add_module(_native MODULE NO_EXTRAS
  csrc/archive/objects/archives.cpp
  csrc/bind/archive.cpp
  csrc/bind/budget.cpp
  csrc/bind/capture.cpp
  csrc/bind/decompose.cpp
  csrc/bind/export.cpp
  csrc/bind/graphs.cpp
  csrc/bind/module.cpp
  csrc/bind/process.cpp
  csrc/bind/serde.cpp
  csrc/bind/split.cpp
  csrc/bind/tracking.cpp
  csrc/bind/unflatten.cpp
  csrc/capture/clean.cpp
  csrc/capture/rewrite.cpp
  csrc/decompose/recipe.cpp
  csrc/decompose/instantiate.cpp
  csrc/export/unlift.cpp
  csrc/fx/arguments.cpp
  csrc/fx/attributes.cpp
  csrc/fx/codegen.cpp
  csrc/fx/descriptors.cpp
  csrc/fx/fakes.cpp
  csrc/fx/graph_module.cpp
  csrc/fx/names.cpp
  csrc/fx/provenance.cpp
  csrc/fx/reader.cpp
  csrc/fx/source_parts.cpp
  csrc/fx/symbols.cpp
  csrc/fx/writer.cpp
  csrc/install/installation.cpp
  csrc/py/exiting_thread.cpp
  csrc/py/gc_pause.cpp
  csrc/serde/check.cpp
  csrc/serde/decode_argument.cpp
  csrc/serde/decode_graph.cpp
  csrc/serde/decode_node_metadata.cpp
  csrc/serde/decode_signature.cpp
  csrc/serde/decode_values.cpp
  csrc/serde/documents.cpp
  csrc/serde/encode.cpp
  csrc/serde/encode_argument.cpp
  csrc/serde/encode_graph.cpp
  csrc/serde/encode_node_metadata.cpp
  csrc/serde/encode_signature.cpp
  csrc/serde/encode_values.cpp
  csrc/serde/graph_decoder.cpp
  csrc/serde/graph_values.cpp
  csrc/serde/objects.cpp
  csrc/serde/operators.cpp
  csrc/serde/symbols.cpp
  csrc/split/assign.cpp
  csrc/split/simple.cpp
  csrc/split/split.cpp
  csrc/split/write.cpp
  csrc/tracking/lookup.cpp
  csrc/unflatten/graph_of_frame.cpp
  csrc/unflatten/program.cpp
  csrc/unflatten/state.cpp
  csrc/unflatten/unflatten.cpp
  csrc/unflatten/write.cpp
)
target_link_libraries(_native PRIVATE fxpress_core)
target_compile_definitions(_native PRIVATE
  FXPRESS_VERSION="${PROJECT_VERSION}" FXPRESS_BUILD_TYPE="${CMAKE_BUILD_TYPE}")
fxpress_compile_options(_native)
target_link_options(_native PRIVATE ${keep_exiting_threads})
fxpress_unite_components(_native)
target_precompile_headers(_native PRIVATE <pybind11/pybind11.h> <pybind11/stl.h>)
install(TARGETS _native LIBRARY DESTINATION fxpress)

if(NOT FXPRESS_ATEN)
  return()
endif()

# The folders of torch are passed by the build backend; otherwise the installed torch is used. Facts
# about torch are read from its files, because find_package(Torch) needs a CUDA toolkit if torch was
# built with CUDA, and importing torch takes seconds.
if(NOT FXPRESS_TORCH)
  execute_process(
    COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/backend/fxpress_build.py
    OUTPUT_VARIABLE FXPRESS_TORCH COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT FXPRESS_TORCH)
  message(FATAL_ERROR "${Python_EXECUTABLE} has no torch: install torch, or configure with "
                      "-DFXPRESS_ATEN=OFF for a build without the tensor parts")
endif()

# An extension for the torch in a folder: _aten_213 for torch 2.13.
function(fxpress_add_aten folder)
  file(STRINGS ${folder}/version.py line REGEX "^__version__ = ")
  if(NOT line MATCHES "'([0-9]+)\\.([0-9]+)\\.([^']*)'")
    message(FATAL_ERROR "${folder}/version.py has no version")
  endif()
  set(version ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3})
  set(name _aten_${CMAKE_MATCH_1}${CMAKE_MATCH_2})
  file(STRINGS ${folder}/share/cmake/Torch/TorchConfig.cmake abi REGEX "_GLIBCXX_USE_CXX11_ABI=0")
  message(STATUS "${name} for torch ${version} in ${folder}")

  Python_add_library(${name} MODULE WITH_SOABI ${FXPRESS_ATEN_SOURCES})
  target_include_directories(${name} SYSTEM PRIVATE
    ${folder}/include ${folder}/include/torch/csrc/api/include)
  target_include_directories(${name} PRIVATE csrc)
  target_compile_definitions(${name} PRIVATE
    _GLIBCXX_USE_CXX11_ABI=$<IF:$<BOOL:${abi}>,0,1> FXPRESS_TORCH_VERSION="${version}"
    FXPRESS_ATEN_MODULE=${name} FXPRESS_ATEN_NAME="${name}"
    FXPRESS_VERSION="${PROJECT_VERSION}" FXPRESS_BUILD_TYPE="${CMAKE_BUILD_TYPE}")
  target_link_directories(${name} PRIVATE ${folder}/lib)
  target_link_libraries(${name} PRIVATE torch_python torch_cpu c10)
  fxpress_compile_options(${name})
  target_link_options(${name} PRIVATE ${keep_exiting_threads})
  fxpress_unite_components(${name})
  if(NOT FXPRESS_UNITY)
    target_precompile_headers(${name} PRIVATE
      <ATen/ATen.h> <ATen/core/dispatch/Dispatcher.h> <torch/csrc/autograd/python_variable.h>
      <torch/csrc/utils/pybind.h>)
  endif()
  # The RPATH needs no path of the build machine: `import torch` loads these libraries before.
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib"
                        BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS ${name} LIBRARY DESTINATION fxpress)
  add_dependencies(aten ${name})
endfunction()

set(FXPRESS_ATEN_SOURCES
  csrc/aten/engine.cpp
  csrc/aten/module.cpp
  csrc/aten/tensor.cpp
  csrc/engine/build.cpp
  csrc/engine/build_calls.cpp
  csrc/engine/build_slots.cpp
  csrc/engine/convert.cpp
  csrc/engine/entry.cpp
  csrc/engine/modules.cpp
  csrc/engine/native.cpp
  csrc/engine/operators.cpp
  csrc/engine/run.cpp
  csrc/engine/slot.cpp
  csrc/engine/step.cpp
  csrc/fx/arguments.cpp
  csrc/fx/symbols.cpp
  csrc/py/exiting_thread.cpp
  csrc/py/gc_pause.cpp
  csrc/tensor/call_digest.cpp
  csrc/tensor/clone.cpp
  csrc/tensor/metadata.cpp
  csrc/tensor/storages.cpp
)
add_custom_target(aten)
foreach(folder IN LISTS FXPRESS_TORCH)
  fxpress_add_aten(${folder})
endforeach()
