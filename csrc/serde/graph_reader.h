// A decoder for Python, and the objects that it borrows.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/budget.h"
#include "serde/decoder.h"

namespace fxpress::serde {

// While a method runs, neither Python code that runs inside nor another thread may use the reader:
// RuntimeError.
class GraphReader {
 public:
  // classes: a SchemaClasses. values: an object of fxpress._files.serde.values, with a budget.
  GraphReader(pybind11::object classes, pybind11::object values, pybind11::dict constants);

  // The parts of a program; see Decoder.
  pybind11::object program(const pybind11::object& document);
  pybind11::object part(const std::string& kind, const pybind11::object& document,
                        const pybind11::object& extra);
  void open();
  void close();
  void forget_values();
  void name_node(const pybind11::object& node, const std::string& name);
  pybind11::object value(uint64_t scope, const std::string& name);
  // The node with this name in the file, or None.
  pybind11::object node(uint64_t scope, const std::string& name);
  pybind11::object nodes(uint64_t scope);
  pybind11::object value_names(uint64_t scope);

  uint64_t scope() const { return decoder_.graphs().current().scope(); }
  pybind11::object graph() const;
  pybind11::object root() const;
  pybind11::dict constants() const { return constants_; }
  void set_constants(const pybind11::dict& constants);
  pybind11::object signature() const;
  void set_signature(const pybind11::object& signature);

 private:
  template <class Use>
  auto use(Use use);
  // Calls use(decoder) while a document is read. `keep`: graphs refer to the document later on.
  template <class Use>
  auto read(const pybind11::object& document, bool keep, Use use);

  pybind11::object classes_, values_, budget_;
  pybind11::dict constants_;
  std::vector<pybind11::object> documents_;  // that graphs refer to
  Decoder decoder_;
  bool busy_ = false;  // in a call
};

}  // namespace fxpress::serde
