// How the module without libtorch makes a fake tensor like another one: a function of the module
// that has it.
#pragma once

namespace fxpress::core {

// Returns a new fake tensor (a PyObject*), without attributes: its class, sizes, strides, offset,
// dtype, device and requires_grad are those of `fake`, its data lie in `storage`, a
// torch.UntypedStorage; asking for them is an error where it `protects` them. A null storage stands
// for a new one of the same size. Null with an error set. Needs the GIL.
using FakeLike = void* (*)(void* fake, void* storage, bool protects);

// The name of the capsule that carries it from one module to the other.
inline constexpr const char* kFakeLikeCapsule = "fxpress.fake_like.2";

}  // namespace fxpress::core
