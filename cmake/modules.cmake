# The two extension modules.
#   _native    pybind11 from PyPI, no libtorch: runs with any torch.
#   _aten_ext  torch's headers and torch's own pybind11: one torch minor version. `fxpress._aten`
#              checks that version before it loads this file.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(pybind11 3 CONFIG REQUIRED)

pybind11_add_module(_native MODULE NO_EXTRAS
  csrc/archive/objects/object_sink.cpp
  csrc/archive/objects/reader.cpp
  csrc/archive/objects/writer.cpp
  csrc/bind/archive.cpp
  csrc/bind/budget.cpp
  csrc/bind/capture.cpp
  csrc/bind/closed_class.cpp
  csrc/bind/expressions.cpp
  csrc/bind/floor.cpp
  csrc/bind/graphs.cpp
  csrc/bind/module.cpp
  csrc/bind/process.cpp
  csrc/bind/serde.cpp
  csrc/bind/split.cpp
  csrc/bind/tracking.cpp
  csrc/bind/unflatten.cpp
  csrc/capture/birth_meta.cpp
  csrc/capture/clean.cpp
  csrc/capture/rewrite.cpp
  csrc/floor/creation_times.cpp
  csrc/floor/graph_copy.cpp
  csrc/fx/arg_mapper.cpp
  csrc/fx/attributes.cpp
  csrc/fx/codegen.cpp
  csrc/fx/codegen_target.cpp
  csrc/fx/computed.cpp
  csrc/fx/deferred.cpp
  csrc/fx/graph_module.cpp
  csrc/fx/local_names.cpp
  csrc/fx/names.cpp
  csrc/fx/reader.cpp
  csrc/fx/symbols.cpp
  csrc/fx/writer.cpp
  csrc/install/installation.cpp
  csrc/install/installed_block.cpp
  csrc/install/rebind.cpp
  csrc/py/gc_pause.cpp
  csrc/serde/check.cpp
  csrc/serde/decode_argument.cpp
  csrc/serde/decode_graph.cpp
  csrc/serde/decode_node.cpp
  csrc/serde/decode_node_metadata.cpp
  csrc/serde/decode_results.cpp
  csrc/serde/decode_signature.cpp
  csrc/serde/decode_values.cpp
  csrc/serde/decoder.cpp
  csrc/serde/decoding.cpp
  csrc/serde/documents.cpp
  csrc/serde/encode.cpp
  csrc/serde/encode_argument.cpp
  csrc/serde/encode_graph.cpp
  csrc/serde/encode_list.cpp
  csrc/serde/encode_node.cpp
  csrc/serde/encode_node_metadata.cpp
  csrc/serde/encode_part.cpp
  csrc/serde/encode_program.cpp
  csrc/serde/encode_signature.cpp
  csrc/serde/encode_values.cpp
  csrc/serde/errors.cpp
  csrc/serde/gate.cpp
  csrc/serde/graph_reader.cpp
  csrc/serde/graph_values.cpp
  csrc/serde/hash.cpp
  csrc/serde/kinds.cpp
  csrc/serde/node_names.cpp
  csrc/serde/objects.cpp
  csrc/serde/open_graphs.cpp
  csrc/serde/operators.cpp
  csrc/serde/payloads.cpp
  csrc/serde/scalars.cpp
  csrc/serde/schema_tables.cpp
  csrc/serde/schema_writer.cpp
  csrc/serde/symbols.cpp
  csrc/serde/targets.cpp
  csrc/split/assign.cpp
  csrc/split/partition_names.cpp
  csrc/split/plan.cpp
  csrc/split/shape_symbols.cpp
  csrc/split/simple.cpp
  csrc/split/split.cpp
  csrc/split/write.cpp
  csrc/tracking/lookup.cpp
  csrc/unflatten/compare.cpp
  csrc/unflatten/graph_of_frame.cpp
  csrc/unflatten/meta.cpp
  csrc/unflatten/program.cpp
  csrc/unflatten/source.cpp
  csrc/unflatten/state.cpp
  csrc/unflatten/unflatten.cpp
  csrc/unflatten/write.cpp
)
target_link_libraries(_native PRIVATE fxpress_core)
target_compile_definitions(_native PRIVATE
  FXPRESS_VERSION="${PROJECT_VERSION}" FXPRESS_BUILD_TYPE="${CMAKE_BUILD_TYPE}")
fxpress_compile_options(_native)
fxpress_unite_rooms(_native)
target_precompile_headers(_native PRIVATE <pybind11/pybind11.h> <pybind11/stl.h>)
install(TARGETS _native LIBRARY DESTINATION fxpress)

if(NOT FXPRESS_ATEN)
  return()
endif()

# find_package(Torch) asks for a CUDA toolkit when torch was built with CUDA; we need none, so the
# paths come from torch itself.
execute_process(
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/torch_paths.py
  OUTPUT_VARIABLE torch_paths OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE torch_result)
if(NOT torch_result EQUAL 0)
  message(FATAL_ERROR "torch is not importable by ${Python_EXECUTABLE}: install torch, or configure "
                      "with -DFXPRESS_ATEN=OFF for a build without the tensor parts")
endif()
list(GET torch_paths 0 torch_version)
list(GET torch_paths 1 torch_root)
list(GET torch_paths 2 torch_abi)

Python_add_library(_aten_ext MODULE WITH_SOABI
  csrc/aten/engine.cpp
  csrc/aten/module.cpp
  csrc/aten/tensor.cpp
  csrc/engine/build.cpp
  csrc/engine/build_calls.cpp
  csrc/engine/call_counters.cpp
  csrc/engine/convert.cpp
  csrc/engine/entry.cpp
  csrc/engine/errors.cpp
  csrc/engine/gil.cpp
  csrc/engine/modules.cpp
  csrc/engine/native.cpp
  csrc/engine/operators.cpp
  csrc/engine/plan_object.cpp
  csrc/engine/python_kernels.cpp
  csrc/engine/run.cpp
  csrc/engine/slot.cpp
  csrc/engine/slots.cpp
  csrc/engine/step.cpp
  csrc/engine/symbols.cpp
  csrc/py/gc_pause.cpp
  csrc/tensor/clone.cpp
  csrc/tensor/facts.cpp
  csrc/tensor/state.cpp
  csrc/tensor/storages.cpp
)
target_include_directories(_aten_ext SYSTEM PRIVATE
  ${torch_root}/include ${torch_root}/include/torch/csrc/api/include)
target_include_directories(_aten_ext PRIVATE csrc)
target_compile_definitions(_aten_ext PRIVATE
  _GLIBCXX_USE_CXX11_ABI=${torch_abi} FXPRESS_TORCH_VERSION="${torch_version}"
  FXPRESS_VERSION="${PROJECT_VERSION}" FXPRESS_BUILD_TYPE="${CMAKE_BUILD_TYPE}")
target_link_directories(_aten_ext PRIVATE ${torch_root}/lib)
target_link_libraries(_aten_ext PRIVATE torch_python torch_cpu c10)
fxpress_compile_options(_aten_ext)
fxpress_unite_rooms(_aten_ext)
if(NOT FXPRESS_UNITY)
  target_precompile_headers(_aten_ext PRIVATE
    <ATen/ATen.h> <ATen/core/dispatch/Dispatcher.h> <torch/csrc/autograd/python_variable.h>
    <torch/csrc/utils/pybind.h>)
endif()
# `import torch` has loaded these libraries before ours is: no path of the build machine is kept.
set_target_properties(_aten_ext PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib"
                      BUILD_WITH_INSTALL_RPATH ON)
install(TARGETS _aten_ext LIBRARY DESTINATION fxpress)

configure_file(cmake/_build_torch.py.in ${CMAKE_CURRENT_BINARY_DIR}/_build_torch.py @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_build_torch.py DESTINATION fxpress)
