// The containers that torch.fx keeps arguments in.
#pragma once

#include <span>

#include "fx/symbols.h"

namespace fxpress::fx {

// An immutable list of the values.
inline Ref new_immutable_list(std::span<const Ref> values) {
  Ref result = Ref::steal(PyObject_CallNoArgs(symbols.immutable_list_type));
  for (const Ref& value : values) check(PyList_Append(result.get(), value.get()));
  return result;
}

}  // namespace fxpress::fx
