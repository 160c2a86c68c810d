// Makes what core/fake_like.h describes.
#pragma once

#include "core/fake_like.h"

namespace fxpress::tensor {

void* fake_like(void* fake, void* storage, bool protects);

}  // namespace fxpress::tensor
