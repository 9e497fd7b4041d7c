// Pages of the program and its libraries that this process has touched count as its memory, though they lie in
// the page cache for everybody. What opening a model needed (parsers, a tokenizer's compiler) is rarely needed again.
#pragma once

namespace qengine {

// Unmaps the untouched-by-writing pages of all read-only file mappings; those that are used again come back without being read.
// Mappings with private copies are left alone: a debugger's breakpoints are such.
void release_code_pages();

}  // namespace qengine
