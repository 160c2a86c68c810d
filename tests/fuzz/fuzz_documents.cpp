// libFuzzer: any text is read as a program, or refused; what was read is written to the same text
// again and again, and has a canonical form and a hash, or is refused.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "serde/canonical.h"
#include "serde/graph_hash.h"
#include "serde/graph_targets.h"
#include "serde/json_reader.h"
#include "serde/json_writer.h"

namespace {

using namespace fxpress::serde;

const Schema& schema() {
  static const std::vector<Schema::NewType> types = {
#include "schema.inc"
  };
  static const Schema made(types);
  return made;
}

std::string written(const Document& document) {
  StringBuffer buffer;
  JsonWriter writer(buffer);
  document.write(document.root(), writer);
  return std::string(buffer.text());
}

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto program = static_cast<uint16_t>(Type::ExportedProgram);
  try {
    const Document read = read_json(text, schema(), program);
    const std::string first = written(read);
    check(written(read_json(first, schema(), program)) == first);
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
  } catch (const CanonicalError&) {
  }
  return 0;
}
