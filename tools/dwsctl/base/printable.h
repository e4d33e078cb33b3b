// Makes text from outside safe for a terminal: names, addresses and errors come from daemons and
// files that are not trusted.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dws::dwsctl {

// Replaces everything that could control or confuse a terminal by '?': control characters (C0, DEL,
// C1), line and paragraph separators, marks that change the direction of writing, and bytes that
// are not UTF-8.
std::string Clean(std::string_view text);

// The columns that clean text takes: 2 for wide characters (East Asian), 0 for combining marks.
size_t TextWidth(std::string_view clean);

// Clean text, shortened to `columns_max` columns (at least 4), with "..." at the end if it was
// shortened.
std::string Printable(std::string_view text, size_t columns_max);

// Like Printable, but shortened at the beginning: for names of tensors, whose end is more
// important.
std::string PrintableEnd(std::string_view text, size_t columns_max);

// Pads `clean` with spaces to `columns`; the text is on the left, or on the right with `left`
// false.
std::string Padded(std::string_view clean, size_t columns, bool left);

// Clean text in lines of at most `columns` (at least 4), broken between words where possible; after
// `lines_max` lines the rest becomes "...". '\n' separates the lines; the last one has none.
std::string Wrapped(std::string_view text, size_t columns, size_t lines_max, size_t indent);

}  // namespace dws::dwsctl
