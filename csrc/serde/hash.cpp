#include "serde/hash.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "schema/canonical.h"
#include "schema/graph_hash.h"

namespace fxpress::serde {

namespace py = pybind11;

namespace {

schema::HashContext hash_context(const py::dict& traits, const py::dict& values) {
  schema::HashContext context;
  for (const auto& [target, stored] : traits) {
    const auto parts = stored.cast<py::tuple>();
    context.traits.emplace(
        target.cast<std::string>(),
        schema::OperatorTraits{parts[0].cast<std::vector<std::string>>(),
                               parts[1].cast<std::vector<std::string>>(), parts[2].cast<bool>(),
                               parts[3].cast<bool>(), parts[4].cast<bool>()});
  }
  for (const auto& [name, digest] : values) {
    const auto bytes = digest.cast<std::string_view>();
    schema::Digest& made = context.values[name.cast<std::string>()];
    if (bytes.size() != made.size()) raise(PyExc_ValueError, "a digest has 32 bytes");
    std::copy(bytes.begin(), bytes.end(), made.begin());
  }
  return context;
}

schema::GraphHash hash_of(const schema::Document& document, const schema::HashContext& context) {
  std::string problem;
  try {
    const py::gil_scoped_release release;
    return schema::hash_program(document, context);
  } catch (const schema::CanonicalError& error) {
    problem = error.what();
  }
  raise(PyExc_AssertionError, "%s", problem.c_str());
}

py::bytes to_bytes(const schema::Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

py::tuple hash_document(const schema::Document& document, const py::dict& traits,
                        const py::dict& values) {
  const schema::GraphHash hash = hash_of(document, hash_context(traits, values));
  static_assert(sizeof(schema::Digest) == 32);
  const auto* nodes = reinterpret_cast<const char*>(hash.nodes.data());
  return py::make_tuple(to_bytes(hash.program),
                        py::bytes(nodes, hash.nodes.size() * sizeof(schema::Digest)));
}

}  // namespace fxpress::serde
