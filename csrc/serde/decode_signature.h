// The signature of a program's graph, and the calls of its modules.
#pragma once

#include <vector>

#include "py/object.h"
#include "serde/decode_argument.h"
#include "serde/decode_values.h"
#include "serde/decoding.h"

namespace fxpress::serde {

class SignatureDecoder {
 public:
  SignatureDecoder(Decoding& file, ArgumentDecoder& arguments, ValueDecoder& values);

  Ref signature(const Value& value);
  Ref input_spec(const Value& spec);
  Ref output_spec(const Value& spec);
  Ref argument_spec(const Value& argument);
  Ref calls(const Value& list);
  Ref call_signature(const Value& value);

 private:
  Ref named_spec(PyObject* type, const Value& argument);
  Ref argument_specs(const Value& list);

  Decoding& file_;
  ArgumentDecoder& arguments_;
  ValueDecoder& values_;
  std::vector<Ref> input_kinds_, output_kinds_;  // by InputKind, OutputKind
};

}  // namespace fxpress::serde
