// Reads what core/tensor_facts.h lists.
#pragma once

#include "core/tensor_facts.h"

namespace fxpress::tensor {

bool read_facts(void* tensor, core::TensorFacts* facts);

}  // namespace fxpress::tensor
