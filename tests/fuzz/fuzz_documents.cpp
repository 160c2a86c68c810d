// libFuzzer: any text is read as a program, as a load does it: within the budget of a file and
// through the gate, or it is refused. What was read is written to the same text again and again,
// and has a canonical form and a hash, or is refused.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "../cpp/write_value.h"
#include "core/budget.h"
#include "schema/canonical.h"
#include "schema/document.h"
#include "schema/gate.h"
#include "schema/graph_hash.h"
#include "schema/json_reader.h"
#include "schema/json_writer.h"
#include "torch_schema.h"

namespace {

using namespace fxpress::schema;

std::string written(const Document& document) {
  StringBuffer buffer;
  JsonWriter writer(buffer);
  write_value(document, document.root(), writer);
  return std::string(buffer.text());
}

void check(bool holds) {
  if (!holds) std::abort();
}

// The defaults of fxpress.archive.Limits.
fxpress::core::Budget budget_of(size_t size) {
  fxpress::core::Budget budget(uint64_t{192} << 20u, 500);
  budget.grow(7 * size);
  return budget;
}

bool passes(const Document& document) {
  try {
    pass_gate(document, [](std::string_view) { return true; });  // any word that is not ASCII
    return true;
  } catch (const GateError& error) {
    check(!error.path().empty() && *error.fault() != 0);
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto program = static_cast<uint16_t>(Type::ExportedProgram);
  try {
    fxpress::core::Budget budget = budget_of(size);
    const Document read = read_json(text, torch_schema(), program, &budget);
    check(read.bytes() <= budget.used() + size);
    const std::string first = written(read);
    const Document again = read_json(first, torch_schema(), program);
    check(written(again) == first);
    check(passes(again) == passes(read));
    HashContext context;
    for (const std::string_view target : targets_of(read)) {
      // Every operator of some names writes, and everything is random: the paths matter.
      if (target.size() % 3 == 0) context.traits[std::string(target)].written = {"self"};
      if (target.size() % 3 == 1) context.traits[std::string(target)].aliased = {"self", "other"};
      context.traits[std::string(target)].random = target.size() % 2 == 0;
    }
    try {
      hash_program(read, context);
    } catch (const CanonicalError&) {
    }
    const Document once = canonicalize(read, {});
    check(written(canonicalize(once, {})) == written(once));
  } catch (const JsonError&) {
  } catch (const fxpress::core::LimitReached&) {
  } catch (const CanonicalError&) {
  }
  return 0;
}
