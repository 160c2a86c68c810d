// Plain values of a document as Python objects.
#pragma once

#include "py/object.h"
#include "py/text.h"
#include "schema/document.h"

namespace fxpress::serde {

// None, a bool, an int, a float or a str; an empty Ref for a value with others in it.
Ref scalar(const schema::Document& document, const schema::Value& value);

}  // namespace fxpress::serde
