#include "tools/dwsctl/base/printable.h"

#include <catch2/catch.hpp>

namespace dws::dwsctl {

TEST_CASE("control characters of a terminal are replaced", "[dwsctl]") {
  CHECK(Clean("a\x1b[31mb\n\t\x7f") == "a?[31mb???");
  CHECK(Clean("\u009b31m") == "?31m");  // CSI as one character
  CHECK(Clean("\x9b"
              "31m") == "?31m");  // and as one byte
  CHECK(Clean("\x1b]0;title\x07") == "?]0;title?");
  CHECK(Clean(std::string_view("a\0b", 3)) == "a?b");
}

TEST_CASE("characters that make a name look like another are replaced", "[dwsctl]") {
  CHECK(Clean("rollout\u202e0-tuo") == "rollout?0-tuo");  // right to left from here
  CHECK(Clean("a\u200bb") == "a?b");                      // of no width
  CHECK(Clean("a\u2028b\u2029c") == "a?b?c");             // line ends
  CHECK(Clean("\ufeff") == "?");
}

TEST_CASE("bytes that are not UTF-8 are replaced and the text after them is kept", "[dwsctl]") {
  CHECK(Clean("a\xff"
              "b") == "a?b");
  CHECK(Clean("\xc3") == "?");
  CHECK(Clean("\xc0\xaf") == "??");            // overlong
  CHECK(Clean("\xed\xa0\x80") == "???");       // a surrogate
  CHECK(Clean("\xf4\x90\x80\x80") == "????");  // above Unicode
  CHECK(Clean("gr\u00fc\u00df \u65e5\u672c") == "gr\u00fc\u00df \u65e5\u672c");
}

TEST_CASE("width is counted in columns and not in bytes", "[dwsctl]") {
  CHECK(TextWidth("rollout") == 7);
  CHECK(TextWidth("gr\u00fcn") == 4);
  CHECK(TextWidth("\u65e5\u672c") == 4);  // wide
  CHECK(TextWidth("e\u0301") == 1);       // combining
  CHECK(Padded("\u65e5\u672c", 6, true) == "\u65e5\u672c  ");
  CHECK(Padded("ab", 4, false) == "  ab");
  CHECK(Padded("abc", 2, true) == "abc");
}

TEST_CASE("text that is too wide is cut between characters", "[dwsctl]") {
  CHECK(Printable("rollout", 7) == "rollout");
  CHECK(Printable("rollouts", 7) == "roll...");
  CHECK(Printable("rol\u00fcouts", 7) == "rol\u00fc...");
  CHECK(Printable("\u65e5\u672c\u65e5\u672c", 7) == "\u65e5\u672c...");
  CHECK(Printable("\u65e5\u672c\u65e5\u672c", 6) == "\u65e5...");
}

TEST_CASE("text that is cut at the beginning keeps its end", "[dwsctl]") {
  CHECK(PrintableEnd("rollout", 7) == "rollout");
  CHECK(PrintableEnd("rollouts", 7) == "...outs");
  CHECK(PrintableEnd("ro\u00fcllo\u00fcts", 7) == "...o\u00fcts");
  CHECK(PrintableEnd("\u65e5\u672c\u65e5\u672c", 6) == "...\u672c");
  CHECK(PrintableEnd("a\x1b[31m", 6) == "a?[31m");
}

TEST_CASE("long text is wrapped between words and cut after the last line", "[dwsctl]") {
  CHECK(Wrapped("no engine rank has attached", 14, 5, 2) == "no engine rank\n  has attached");
  CHECK(Wrapped("abcdefghij", 4, 5, 1) == "abcd\n efgh\n ij");
  CHECK(Wrapped("one two three four", 7, 2, 0) == "one two\nthre...");
  CHECK(Wrapped("a\nb", 10, 3, 0) == "a?b");
  CHECK(Wrapped("", 10, 3, 0).empty());
}

}  // namespace dws::dwsctl
