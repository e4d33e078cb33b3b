// Text from outside (names, paths, errors of peers) made safe to print: in a log, an error message,
// a terminal. Whoever lets text out calls this; who passes it on does not.
#pragma once

#include <string>
#include <string_view>

namespace dws {

// What a terminal or a log could obey, or what lets a name pretend to be another: C0 and C1
// controls, DEL, separators of lines and paragraphs, marks of direction, invisible joiners and
// tags. Pure.
bool IsUnprintable(char32_t code_point);

// `text` with each of those as "\x1b" or "\u202e" and each byte that is no UTF-8 as "\xff", so that
// it is one line of valid UTF-8. Everything else stays, a backslash too: escaping twice changes
// nothing. Pure.
std::string EscapeUnprintable(std::string_view text);

}  // namespace dws
