// EBNF: grammars as structured_outputs.grammar takes them (the form of GBNF and xgrammar) into rules of
// a grammar.
//
//   root ::= "Answer: " ( yes | no ) "." [0-9]{1,3}   # up to the end of the line
//
// Syntax: rules `name ::= ...`, begun at "root"; "text" (escapes \n \r \t \a \b \f \v \e \0 \" \' \? \\ and
// \xHH \uHHHH \UHHHHHHHH), [a-z] and [^a-z] (a code point; also \] \- \^ inside), . (any code point),
// names, ( ... ), |, * + ? {m} {m,} {m,n}. Line breaks separate nothing: a rule ends where the next begins.
// Left recursion: a rule may begin with itself (e ::= e "+" t | t); through other rules it is refused.
// Refused by name: lookahead (= ...), tokens <...>, Lark's rules (name: ...).
#pragma once

#include <string_view>

#include "core/structured/grammar.hpp"

namespace qengine::structured {

// Adds the rules of `text`; returns that of "root". Throws GrammarError whose place is "line L, column C".
RuleId add_ebnf(GrammarBuilder& builder, std::string_view text);

}  // namespace qengine::structured
