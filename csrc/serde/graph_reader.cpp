#include "serde/graph_reader.h"

#include "py/convert.h"

namespace fxpress::serde {

namespace py = pybind11;

GraphReader::GraphReader(py::object classes, py::object values, py::dict constants)
    : classes_(std::move(classes)),
      values_(std::move(values)),
      budget_(values_.attr("budget").attr("native")),
      constants_(std::move(constants)),
      decoder_({values_.ptr(), constants_.ptr(), classes_.cast<SchemaClasses*>(),
                budget_.cast<core::Budget*>()}) {
  decoder_.graphs().open();
}

template <class Use>
auto GraphReader::use(Use use) {
  if (busy_) raise(PyExc_RuntimeError, "this deserializer is reading already");
  struct Busy {
    bool& flag;
    explicit Busy(bool& busy) : flag(busy) { flag = true; }
    ~Busy() { flag = false; }
  } const busy(busy_);
  return use();
}

template <class Use>
auto GraphReader::read(const py::object& document, bool keep, Use use) {
  return this->use([&] {
    decoder_.read(*document.cast<Document*>());
    if (keep) documents_.push_back(document);
    return use();
  });
}

py::object GraphReader::program(const py::object& document) {
  return read(document, true, [&] {
    try {
      return to_object(decoder_.program());
    } catch (...) {  // the traceback holds the reader: the collector cannot see into it
      decoder_.graphs().clear();
      throw;
    }
  });
}

py::object GraphReader::part(const std::string& kind, const py::object& document,
                             const py::object& extra) {
  return read(document, kind == "graph",
              [&] { return to_object(decoder_.part(kind, extra.ptr())); });
}

void GraphReader::open() {
  use([&] { decoder_.graphs().open(); });
}

void GraphReader::close() {
  use([&] { decoder_.graphs().close(); });
}

void GraphReader::forget_values() {
  use([&] { decoder_.forget_values(); });
}

void GraphReader::name_node(const py::object& node, const std::string& name) {
  use([&] { decoder_.name_node(node.ptr(), name); });
}

py::object GraphReader::value(uint64_t scope, const std::string& name) {
  return use([&] { return to_object(decoder_.value(scope, name)); });
}

py::object GraphReader::node(uint64_t scope, const std::string& name) {
  return use([&] {
    const Defined* known = decoder_.graphs().of(scope).find(name);
    return borrow_or_none(known == nullptr ? nullptr : known->node.get());
  });
}

py::object GraphReader::nodes(uint64_t scope) {
  return use([&] { return to_object(decoder_.graphs().of(scope).nodes()); });
}

py::object GraphReader::value_names(uint64_t scope) {
  return use([&] { return to_object(decoder_.graphs().of(scope).value_names()); });
}

py::object GraphReader::graph() const {
  return borrow_or_none(decoder_.graphs().current().graph());
}

py::object GraphReader::root() const {
  return borrow_or_none(decoder_.graphs().current().root());
}

void GraphReader::set_constants(const py::dict& constants) {
  use([&] {
    constants_ = constants;
    decoder_.set_constants(constants_.ptr());
  });
}

py::object GraphReader::signature() const {
  return borrow_or_none(decoder_.signature());
}

void GraphReader::set_signature(const py::object& signature) {
  use([&] { decoder_.set_signature(Ref::borrow(signature.ptr())); });
}

}  // namespace fxpress::serde
