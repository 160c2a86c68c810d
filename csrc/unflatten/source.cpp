#include "unflatten/source.h"

#include <pybind11/stl.h>

#include "py/convert.h"

namespace fxpress::unflatten {

namespace py = pybind11;

namespace {

Ref own(const py::handle& object) {
  return Ref::borrow(object.ptr());
}

// (name, None) or ("", (constant,))
std::vector<LeafSource> leaves(const py::handle& items) {
  std::vector<LeafSource> result;
  for (const py::handle& item : items) {
    const auto [name, constant] = item.cast<std::pair<std::string, py::object>>();
    LeafSource leaf{name, {}};
    if (!constant.is_none()) leaf.constant = own(constant.cast<py::tuple>()[0]);
    result.push_back(std::move(leaf));
  }
  return result;
}

SignatureSource signature(const py::handle& item) {
  const auto fields = item.cast<py::tuple>();
  return {fields[0].cast<std::string>(),
          leaves(fields[1]),
          leaves(fields[2]),
          fields[3].cast<uint32_t>(),
          fields[4].cast<std::vector<std::string>>(),
          own(fields[5]),
          own(fields[6])};
}

}  // namespace

UnflattenSource read_source(const py::dict& source) {
  UnflattenSource result;
  result.graph = py::handle(source["graph"]).ptr();
  result.owner = py::handle(source["owner"]).ptr();
  result.may_alias = py::handle(source["may_alias"]).ptr();
  result.parts = py::handle(source["parts"]).ptr();
  for (const py::handle& item : source["mutations"]) {
    const auto [is_parameter, input] = item.cast<std::pair<bool, std::string>>();
    result.mutations.push_back(
        {is_parameter ? WriteTarget::kParameter : WriteTarget::kBufferOrInput, input});
  }
  for (const py::handle& item : source["signatures"]) result.signatures.push_back(signature(item));
  result.with_signature = source["with_signature"].cast<std::vector<std::string>>();
  result.state = source["state"].cast<const ProgramState*>();
  result.paths = source["paths"].cast<std::vector<std::string>>();
  result.classes = {py::handle(source["interpreter"]).ptr(),
                    py::handle(source["dispatcher"]).ptr()};
  result.run_with_interpreter = source["run_with_interpreter"].cast<bool>();
  result.drop_dead_code = source["drop_dead_code"].cast<bool>();
  return result;
}

std::unique_ptr<ProgramState> program_state(const py::list& names, const py::list& values,
                                            size_t constants_begin, std::vector<uint32_t> groups,
                                            const py::object& specs,
                                            const py::object& check_constant, bool copies_unused) {
  if (names.size() != values.size() || groups.size() != values.size() ||
      constants_begin > values.size()) {
    throw py::value_error("a name and a group for each value");
  }
  for (uint32_t group : groups) {
    if (group >= values.size()) throw py::value_error("groups count from 0");
  }
  return std::make_unique<ProgramState>(HeldState{names.ptr(), values.ptr(), constants_begin,
                                                  std::move(groups), specs.ptr(),
                                                  check_constant.ptr(), copies_unused});
}

py::tuple wanted_values(const ProgramState& state) {
  const auto& values = state.wanted();
  py::list objects(values.size());
  py::list flags(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    objects[i] = py::reinterpret_borrow<py::object>(values[i]);
    flags[i] = py::bool_(state.are_parameters()[i] != 0);
  }
  return py::make_tuple(objects, flags);
}

py::tuple to_tuple(Unflattened result) {
  py::list cuts;
  for (const CutStack& cut : result.cuts) {
    cuts.append(
        py::make_tuple(py::reinterpret_borrow<py::object>(cut.node), cut.paths, cut.dropped));
  }
  return py::make_tuple(to_object(std::move(result.root_type)), cuts);
}

py::tuple to_tuple(Outlined result) {
  py::list calls;
  for (OutlinedCall& call : result.calls) {
    calls.append(py::make_tuple(
        to_object(std::move(call.key)), to_object(std::move(call.caller_path)),
        to_object(std::move(call.caller)), to_object(std::move(call.call_node)),
        to_object(std::move(call.path)), call.number, to_object(std::move(call.module))));
  }
  py::list attributes;
  for (OutlinedAttribute& attribute : result.attributes) {
    attributes.append(py::make_tuple(to_object(std::move(attribute.call_name)),
                                     to_object(std::move(attribute.target)),
                                     to_object(std::move(attribute.module))));
  }
  return py::make_tuple(calls, attributes);
}

}  // namespace fxpress::unflatten
