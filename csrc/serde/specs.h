// The specs of a signature as objects of torch.
#pragma once

#include "py/object.h"
#include "schema/signature.h"

namespace fxpress::serde {

using schema::SpecArgument;
using schema::SpecInfo;
using schema::SpecTarget;

// The row of an InputSpec or OutputSpec of torch; AssertionError for an enum member that is unknown
// or of the other class.
const SpecInfo& spec_info(PyObject* spec, schema::Type type);

// torch's class for the arguments of a type: borrowed; null for SpecArgument::kAny.
PyObject* python_type(SpecArgument type);

}  // namespace fxpress::serde
