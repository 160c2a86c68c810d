#include "serde/encode_program.h"

#include "serde/errors.h"
#include "serde/symbols.h"

namespace fxpress::serde {

// Borrowed.
PyObject* ProgramEncoder::fact(const char* name) const {
  PyObject* value = PyDict_GetItemString(facts_, name);
  if (value == nullptr) raise(PyExc_KeyError, "%s", name);
  return value;
}

void ProgramEncoder::program(PyObject* module, PyObject* signature, PyObject* calls) {
  const std::string& difference = out_.schema().difference();
  if (!difference.empty()) {
    raise(symbols.unsupported_error,
          "the schema of this torch differs in %s, which fxpress cannot write", difference.c_str());
  }
  out_.record(Type::ExportedProgram, [&](Field field) {
    switch (field) {
      case Field::ExportedProgram_graph_module:
        return graph_module(module, signature, calls);
      case Field::ExportedProgram_opset_version:
        return opset_version();
      case Field::ExportedProgram_range_constraints:
        return range_constraints();
      case Field::ExportedProgram_schema_version:
        return schema_version();
      case Field::ExportedProgram_verifiers:
        return out_.strings(fact("verifiers"));
      case Field::ExportedProgram_torch_version:
        return out_.string(fact("torch_version"));
      default:
        return out_.strings(fact("guards_code"));
    }
  });
  const ProgramCheck* check = encoders_.to.context.check;
  if (check == nullptr) return;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(check->graph_modules); ++i) {
    if (!encoders_.graphs.has_written(PyList_GET_ITEM(check->graph_modules, i))) throw Doubtful();
  }
}

void ProgramEncoder::graph_module(PyObject* module, PyObject* signature, PyObject* calls) {
  out_.record(Type::GraphModule, [&](Field field) {
    switch (field) {
      case Field::GraphModule_graph:
        return encoders_.graphs.graph(module);
      case Field::GraphModule_signature:
        return encoders_.signatures.signature(signature);
      case Field::GraphModule_module_call_graph:
        return encoders_.signatures.calls(calls);
      case Field::GraphModule_metadata:
        return out_.map(fact("metadata"), [&](PyObject* text) { out_.string(text); });
      default:
        return out_.map(fact("namedtuple_fields"), [&](PyObject* fields) {
          out_.record(Type::NamedTupleDef, [&](Field) { out_.strings(fields); });
        });
    }
  });
}

void ProgramEncoder::opset_version() {
  out_.map(fact("opset_version"), [&](PyObject* value) {
    if (PyBool_Check(value)) return sink_.boolean(value == Py_True);
    if (PyFloat_Check(value)) return sink_.real(PyFloat_AS_DOUBLE(value));
    out_.integer(value);
  });
}

void ProgramEncoder::range_constraints() {
  out_.map(fact("range_constraints"), [&](PyObject* value) {
    out_.record(Type::RangeConstraint, [&](Field bound) {
      const bool lower = bound == Field::RangeConstraint_min_val;
      PyObject* limit = PyTuple_GET_ITEM(value, lower ? 0 : 1);
      if (limit == Py_None) return sink_.null();
      out_.integer(limit);
    });
  });
}

void ProgramEncoder::schema_version() {
  out_.record(Type::SchemaVersion, [&](Field part) {
    const bool major = part == Field::SchemaVersion_major;
    out_.integer(PyTuple_GET_ITEM(fact("schema_version"), major ? 0 : 1));
  });
}

}  // namespace fxpress::serde
