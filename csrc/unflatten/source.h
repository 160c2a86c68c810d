// The arguments and results of unflatten as objects of Python.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "unflatten/unflatten.h"

namespace fxpress::unflatten {

// Reads the dict that python/fxpress/_unflatten makes; source.py there has its keys.
UnflattenSource read_source(const pybind11::dict& source);

// ValueError when the parts do not fit together.
std::unique_ptr<ProgramState> program_state(const pybind11::list& names,
                                            const pybind11::list& values, size_t constants_begin,
                                            std::vector<uint32_t> groups,
                                            const pybind11::object& specs,
                                            const pybind11::object& check_constant,
                                            bool copies_unused);

// (the values to copy, whether each copy is a parameter)
pybind11::tuple wanted_values(const ProgramState& state);

// (the root's class or None, [(node, paths, number of cut paths)])
pybind11::tuple to_tuple(Unflattened result);

// ([the key and the fields of a call], [the fields of an attribute])
pybind11::tuple to_tuple(Outlined result);

}  // namespace fxpress::unflatten
