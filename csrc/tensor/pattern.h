// Tensors with the metadata of another one.
#pragma once

#include <ATen/ATen.h>

#include <optional>

namespace fxpress::tensor {

// A tensor on the meta device with the sizes, strides and offset of `pattern`, which may be
// symbolic: nothing is computed of them. `storage`: where it lies; none: in a new one, as large as
// the pattern's.
at::Tensor like_pattern(const at::Tensor& pattern, const std::optional<at::Storage>& storage);

}  // namespace fxpress::tensor
