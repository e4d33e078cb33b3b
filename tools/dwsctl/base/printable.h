// Text from outside made safe for a terminal: names, addresses and errors come from daemons and
// files that may be anybody's.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dws::dwsctl {

// `text` without what a terminal could obey or be confused by: control characters (C0, DEL, C1),
// line and paragraph separators, marks that change the direction of writing, and bytes that are no
// UTF-8 each become '?'.
std::string Clean(std::string_view text);

// The columns that clean text takes: 2 for wide characters (East Asian), 0 for combining marks.
size_t TextWidth(std::string_view clean);

// Clean text cut to `columns_max` columns, at least 4, with "..." at the end when something is
// missing.
std::string Printable(std::string_view text, size_t columns_max);

// The same, cut at the beginning: of tensors' names, whose end says more.
std::string PrintableEnd(std::string_view text, size_t columns_max);

// `text` filled up with spaces to `columns`, on the right or with `left` false on the left.
std::string Padded(std::string_view clean, size_t columns, bool left);

// Clean text in lines of at most `columns` (at least 4), broken between words where there are any;
// after `lines_max` lines the rest is cut with "...". No line ends in '\n'; each is joined by it.
std::string Wrapped(std::string_view text, size_t columns, size_t lines_max, size_t indent);

}  // namespace dws::dwsctl
