// Makes the values of a graph from the facts in its tables: fake tensors, numbers, objects.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fx/fakes.h"
#include "py/object.h"
#include "serde/decoding.h"
#include "serde/open_graphs.h"
#include "serde/text_map.h"

namespace fxpress::serde {

class ValueDecoder {
 public:
  explicit ValueDecoder(Decoding& file);

  // The value of a name: borrowed. It is made when the first node needs it, so that numbers are
  // known in the order in which nodes tell of them.
  PyObject* value_of(Defined& defined, std::string_view name);

  Ref tensor(const Value& meta);
  Ref custom_object(const Value& record);
  // These return the objects that codes and records of the file stand for.
  Ref dtype_of(const Value& code) const { return from_table(dtypes_, code, "dtype"); }
  Ref layout_of(const Value& code) const { return from_table(layouts_, code, "layout"); }
  Ref memory_format_of(const Value& code) const {
    return from_table(memory_formats_, code, "memory format");
  }
  Ref device_of(const Value& value);

  // Numbers and tensors are made anew from here on: ranges or the mode have changed.
  void forget();

 private:
  struct Device {
    std::string type;
    std::optional<int64_t> index;
    Ref object;                               // torch.device
    std::optional<fx::FakeMaker> fakes = {};  // makes those on it, once there is one
    TextMap<Ref> first = {};  // by what they have in common: the first fake tensor on it
  };
  enum class Role : uint8_t { kNumber, kOffset };  // of a number: anywhere, or in a storage

  Ref make_value(const Defined& defined);
  Ref number(const Value& value, Role role = Role::kNumber);
  Device& known_device(const Value& value);
  Ref from_table(const std::vector<Ref>& table, const Value& code, const char* what) const;
  std::string plain_key(const Value& meta) const;
  Ref plain_tensor(const Value& meta, const std::string& key, PyObject* dtype, Device& device,
                   bool grad);
  Ref plain_sizes(const Value& list) const;  // a tuple of ints, which they must be
  Ref symbolic_sizes(const Value& list);

  Decoding& file_;
  std::vector<Ref> dtypes_, layouts_, memory_formats_;  // by number in the file
  std::vector<Device> devices_;                         // those that were met
  TextMap<Ref> numbers_;                                // by role, kind, text and hint
};

}  // namespace fxpress::serde
