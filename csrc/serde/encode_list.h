// Lists and tuples among the arguments. The file has a kind for each kind of items, so the items
// decide which one it is.
#pragma once

#include "py/object.h"
#include "serde/encoding.h"

namespace fxpress::serde {

class ListEncoder {
 public:
  explicit ListEncoder(Encoding& to) : out_(to.out), sink_(to.out.sink()), names_(to.names) {}

  // type: of the operator's schema, for empty lists; or null.
  void list(PyObject* list, PyObject* type);

 private:
  void empty_list(PyObject* type);
  // These write the list when its items are of their kinds, and return whether they did.
  bool plain_list(PyObject* items);
  bool number_list(PyObject* items);
  bool tensor_list(PyObject* items);
  bool nested_list(PyObject* items);
  void other_list(PyObject* items);

  // These return true, for the ones above.
  template <class F>
  bool write(Field field, PyObject* items, F&& each);
  bool numbers(Table table, PyObject* items);

  void optional_tensor(PyObject* name);
  void tensor(PyObject* name);

  SchemaWriter& out_;
  EventSink& sink_;
  NodeNames& names_;
};

}  // namespace fxpress::serde
