// What a function of Python makes of values of a JSON text, once of equal ones.
#pragma once

#include <string_view>
#include <unordered_map>
#include <utility>

#include "py/object.h"

namespace fxpress::view {

class Once {
 public:
  // Values are known by their text, which outlives this object.
  explicit Once(PyObject* make) : make_(Ref::borrow(make)) {}

  // What was made of a value, borrowed; `load()` gives the value where nothing was made yet.
  template <class Load>
  PyObject* of(std::string_view text, Load&& load) {
    const auto found = made_.find(text);
    if (found != made_.end()) return found->second.get();
    Ref made = Ref::steal(PyObject_CallOneArg(make_.get(), load().get()));
    return made_.emplace(text, std::move(made)).first->second.get();
  }

 private:
  Ref make_;
  std::unordered_map<std::string_view, Ref> made_;  // text of a value -> what was made of it
};

}  // namespace fxpress::view
