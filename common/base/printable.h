// Makes text from outside (names, paths, errors of peers) safe to print in a log, an error message
// or a terminal. The code that prints calls this; code that only passes text on does not.
#pragma once

#include <string>
#include <string_view>

namespace dws {

// Characters that a terminal or a log could interpret, or that make one name look like another: C0
// and C1 controls, DEL, separators of lines and paragraphs, marks of direction, invisible joiners
// and tags. Pure.
bool IsUnprintable(char32_t code_point);

// Returns `text` with each unprintable character written like "\x1b" or "\u202e", and each byte
// that is not UTF-8 like "\xff". The result is one line of valid UTF-8. Everything else stays,
// backslashes included, so escaping twice changes nothing. Pure.
std::string EscapeUnprintable(std::string_view text);

// If `name` is not the same when it is escaped, returns a text that says so and quotes it escaped.
// Empty: `name` can be printed unchanged. Pure.
std::string UnprintableIn(std::string_view name);

}  // namespace dws
