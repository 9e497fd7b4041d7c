// SchemaView: a schema taken apart. What applies to one value is a conjunction of schemas; resolving
// $ref and allOf and choosing branches of anyOf and oneOf turns it into alternatives, each a list of
// schemas whose plain keywords must all hold. With that, every keyword has its exact meaning by
// itself: no schemas are ever merged.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/checkpoint.hpp"  // Json
#include "core/structured/budget.hpp"
#include "core/structured/dfa.hpp"
#include "core/structured/numbers.hpp"

namespace qengine::structured {

// A schema and where it stands. Points into the document.
struct SchemaRef {
  const Json* schema = nullptr;
  std::string place;
};
using Conjunction = std::vector<SchemaRef>;

enum TypeBit : unsigned { kNull = 1, kBoolean = 2, kInteger = 4, kFraction = 8, kString = 16, kArray = 32, kObject = 64, kNumber = kInteger | kFraction, kAllTypes = 127 };

class SchemaView {
 public:
  SchemaView(const Json& document, Budget& budget) : document_(document), budget_(budget) {}

  // The alternatives of a value that satisfies all of `all`; none: no value does. Their schemas are
  // objects whose combining keywords are already dealt with.
  std::vector<Conjunction> alternatives(const Conjunction& all);

  // What follows is about one alternative.
  static bool asserts(const Conjunction& plain);  // false: every value satisfies it
  // Where no schema names a type: those that its keywords speak about.
  static unsigned types(const Conjunction& plain);
  // Values listed by enum and const that satisfy everything; nullopt: the schemas list none.
  std::optional<std::vector<Json>> listed(const Conjunction& plain);
  NumberBounds number(const Conjunction& plain, bool integer);
  // Everything that pattern and format say about a string; nullopt: nothing.
  std::optional<Dfa> text(const Conjunction& plain);
  // Texts that propertyNames allows; nullopt: all.
  std::optional<Dfa> names(const Conjunction& plain);
  // minimum and maximum of a counting keyword pair; most < 0: none.
  struct Count {
    std::int64_t least = 0, most = -1;
  };
  Count count(const Conjunction& plain, const char* least, const char* most);

  // What applies to the property `name`: nothing (any value), or a conjunction that may contain false.
  Conjunction property(const Conjunction& plain, const std::string& name);
  // What applies to a property that is neither declared nor matches a pattern.
  Conjunction additional(const Conjunction& plain);
  Conjunction item(const Conjunction& plain, std::size_t index);
  std::size_t prefix_items(const Conjunction& plain);  // positions that have a schema of their own

  // All of JSON Schema's validation for the supported keywords.
  bool holds(const Json& value, const Conjunction& all);

  const Dfa& pattern(const std::string& text, const std::string& place);

 private:
  void check(const SchemaRef& ref);
  SchemaRef resolve(const std::string& ref, const std::string& place);
  void expand(Conjunction todo, Conjunction plain, std::vector<const Json*> seen, std::vector<Conjunction>& out, int depth);
  bool exclusive(const Conjunction& a, const Conjunction& b, int depth);
  bool holds_plain(const Json& value, const Conjunction& plain);

  const Json& document_;
  Budget& budget_;
  std::set<const Json*> checked_, one_checked_;
  std::map<std::string, Dfa> patterns_;
  int depth_ = 0;
};

}  // namespace qengine::structured
