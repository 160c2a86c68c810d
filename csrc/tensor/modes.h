// Tells whether somebody else watches the operations on tensors.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace fxpress::tensor {

// Modes and tracers want to see every copy: they get Python calls.
inline bool copies_are_observed() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Functionalize);
}

}  // namespace fxpress::tensor
