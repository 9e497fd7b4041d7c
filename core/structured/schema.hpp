// JSON Schema (2020-12, and the older forms of the same keywords) into rules of a grammar.
//
// A text that the grammar accepts is JSON that the schema validates. The reverse does not hold, on
// purpose: properties come in the order of the schema (further required ones, then additional ones
// after them); where properties are declared, others are written only if additionalProperties or
// patternProperties say so; blanks are few, numbers and formats are subsets (numbers.hpp,
// formats.hpp); a schema without "type" that speaks only about some types gives one of those.
//
// Enforced  type enum const; properties required additionalProperties patternProperties propertyNames
//           minProperties maxProperties; items prefixItems additionalItems minItems maxItems;
//           minLength maxLength pattern format; minimum maximum exclusiveMinimum exclusiveMaximum
//           multipleOf (integers); anyOf allOf; oneOf of alternatives that exclude each other;
//           $ref within the document, recursive ones too; $defs definitions $anchor.
// Ignored   title description default examples deprecated readOnly writeOnly $comment $schema $id and
//           the content* keywords: they assert nothing.
// Refused   everything else, by name and place.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/model/checkpoint.hpp"  // Json
#include "core/structured/grammar.hpp"

namespace qengine::structured {

struct SchemaOptions {
  bool blanks = true;   // allow white space between tokens of the JSON
  std::optional<std::string> blank_pattern = std::nullopt;  // a regular expression of that white space
  bool object = false;  // whatever the schema says, the value is an object
};

// Adds the rule of `schema`. Throws GrammarError whose place is a JSON pointer into it.
RuleId add_schema(GrammarBuilder& builder, const Json& schema, const SchemaOptions& options = {});

// Any JSON object: response_format json_object.
RuleId add_any_object(GrammarBuilder& builder, const SchemaOptions& options = {});

// The bytes of a JSON string, its quotes included, as this room writes them.
std::string json_string(std::string_view text);

}  // namespace qengine::structured
