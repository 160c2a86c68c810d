#include "unflatten/unflatten.h"

#include <pybind11/stl.h>

#include "bind/closed_class.h"
#include "bind/components.h"

namespace fxpress::bind {

namespace {

// Converts the dict that python/fxpress/_graphs/unflatten/source.py creates.
unflatten::UnflattenSource read_source(const py::dict& source) {
  unflatten::UnflattenSource result;
  result.graph = py::handle(source["graph"]).ptr();
  result.owner = py::handle(source["owner"]).ptr();
  result.may_alias = py::handle(source["may_alias"]).ptr();
  result.parts = py::handle(source["parts"]).ptr();
  for (const py::handle& item : source["mutations"]) {
    const auto [is_parameter, input] = item.cast<std::pair<bool, std::string>>();
    result.mutations.push_back(
        {is_parameter ? unflatten::WriteTarget::kParameter : unflatten::WriteTarget::kBufferOrInput,
         input});
  }
  result.signatures = py::handle(source["signatures"]).ptr();
  result.with_signature = source["with_signature"].cast<std::vector<std::string>>();
  result.state = source["state"].cast<const unflatten::ProgramState*>();
  result.paths = source["paths"].cast<std::vector<std::string>>();
  result.classes = {py::handle(source["interpreter"]).ptr(),
                    py::handle(source["dispatcher"]).ptr()};
  result.run_with_interpreter = source["run_with_interpreter"].cast<bool>();
  result.drop_dead_code = source["drop_dead_code"].cast<bool>();
  return result;
}

// Creates a ProgramState. Raises ValueError if the arguments are inconsistent.
std::unique_ptr<unflatten::ProgramState> program_state(
    const py::list& names, const py::list& values, size_t constants_begin,
    std::vector<uint32_t> groups, const py::object& specs, const py::object& check_constant,
    bool copies_unused) {
  if (names.size() != values.size() || groups.size() != values.size() ||
      constants_begin > values.size()) {
    throw py::value_error("expected a name and a group for each value");
  }
  for (uint32_t group : groups) {
    if (group >= values.size()) throw py::value_error("a group is out of range");
  }
  return std::make_unique<unflatten::ProgramState>(
      unflatten::HeldState{names.ptr(), values.ptr(), constants_begin, std::move(groups),
                           specs.ptr(), check_constant.ptr(), copies_unused});
}

// Returns (the values to copy, whether each copy is a parameter).
py::tuple wanted_values(const unflatten::ProgramState& state) {
  const auto& values = state.wanted();
  py::list objects(values.size());
  py::list flags(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    objects[i] = py::reinterpret_borrow<py::object>(values[i]);
    flags[i] = py::bool_(state.are_parameters()[i] != 0);
  }
  return py::make_tuple(objects, flags);
}

}  // namespace

void bind_unflatten(py::module_& m) {
  using unflatten::ProgramState;
  closed_class<ProgramState>(m, "ProgramState",
                             R"(Decides which value each name of a program's state gets.

The values are in the order in which torch assigns them. Values with the same group are one object
or share data. Unless `copies_unused`, values that share no data with an input of the graph are not
copied.

Raises:
    KeyError: the specs name state that does not exist.
    AssertionError: specs or constants that an export does not write.)")
      .def(py::init(&program_state), py::kw_only(), "names"_a, "values"_a, "constants_begin"_a,
           "groups"_a, "specs"_a, "check_constant"_a, "copies_unused"_a,
           "The values from position `constants_begin` on are constants.")
      .def("wanted", wanted_values,
           "Return the values to copy, and whether each copy is a parameter.")
      .def(
          "fill", [](ProgramState& state, const py::list& copies) { state.fill(copies.ptr()); },
          "copies"_a, py::pos_only(), "Store the copies of the wanted values.");
  m.def(
      "unflatten",
      [](const py::dict& source, const py::handle& root) {
        return unflatten::unflatten(read_source(source), root.ptr());
      },
      "source"_a, "root"_a, py::pos_only(),
      "Fill `root`. Return its class and, for each module stack that was cut, (node, paths, cut).");
  m.def(
      "outline_submodules",
      [](const py::dict& source, const py::handle& root) {
        return unflatten::outline_submodules(read_source(source), root.ptr());
      },
      "source"_a, "root"_a, py::pos_only(),
      R"(Outline into `root`, and return its calls and attributes.

A call is a module id and the fields of `_SubmoduleEntry`. An attribute is the call name, target and
module of a get_attr node.)");
}

}  // namespace fxpress::bind
