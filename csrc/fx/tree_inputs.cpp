#include "fx/tree_inputs.h"

#include <string_view>

#include "fx/local_names.h"
#include "fx/symbols.h"

namespace fxpress::fx {

namespace {

std::vector<std::string> texts(PyObject* list) {
  std::vector<std::string> result;
  result.reserve(static_cast<size_t>(PyList_GET_SIZE(list)));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    result.emplace_back(utf8(PyList_GET_ITEM(list, i)));
  }
  return result;
}

std::string marked(std::string_view name) {
  return kLocalMark + std::string(name);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + marked(name);
  return text;
}

bool has_mark(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.find(kLocalMark) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

std::optional<TreeInputs> read_tree_inputs(PyObject* codegen) {
  const Ref parts = Ref::steal(PyObject_CallOneArg(symbols.tree_inputs, codegen));
  if (parts.get() == Py_None) return std::nullopt;
  PyObject* parameters = nullptr;
  PyObject* positional = nullptr;
  PyObject* keys = nullptr;
  int builds_outputs = 0;
  if (PyArg_ParseTuple(parts.get(), "O!O!Op", &PyList_Type, &parameters, &PyList_Type, &positional,
                       &keys, &builds_outputs) == 0) {
    throw_python_error();
  }
  TreeInputs inputs = {
      texts(parameters), texts(positional), keys != Py_None, {}, builds_outputs != 0};
  if (inputs.has_keywords) {
    const std::vector<std::string> names = texts(keys);
    if (has_mark(names)) return std::nullopt;
    for (size_t i = 0, k = inputs.positional.size(); i < names.size(); ++i, ++k) {
      if (k < inputs.parameters.size())
        inputs.keywords.emplace_back(names[i], inputs.parameters[k]);
    }
  }
  if (has_mark(inputs.parameters)) return std::nullopt;
  return inputs;
}

std::string tree_prologue(const TreeInputs& inputs, const std::vector<std::string>& values) {
  std::string text = "def forward(" + marked("self");
  for (const std::string& parameter : inputs.parameters) text += ", " + marked(parameter);
  text += "):";
  if (values.empty()) return text;
  text += "\n    ";
  for (const std::string& value : values) text += (&value == &values[0] ? "" : ", ") + value;
  text += ", = fx_pytree.tree_flatten_spec(";
  const std::string flat = "[" + joined(inputs.positional) + "]";
  if (inputs.has_keywords) {
    text += "(" + flat + ", {";
    const char* separator = "";
    for (const auto& [key, parameter] : inputs.keywords) {
      text += separator;
      text += "'" + key + "':" + marked(parameter);
      separator = ", ";
    }
    text += "})";
  } else {
    text += flat;
  }
  return text + ", " + marked("self") + "._in_spec)";
}

}  // namespace fxpress::fx
