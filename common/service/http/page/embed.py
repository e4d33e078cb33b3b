"""Makes the page at / of its sources: embed.py page.html page.css SCRIPT... > front_page.h

The style and the scripts go into the HTML, where it has `<!-- style -->` and `<!-- script -->`, so that the page is one file.
The output is a header of C++ with two constants: the page, and its Content-Security-Policy, by which a browser runs this style and
this script and nothing else, and asks nobody but the daemon.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

# No raw string of a page may contain it.
DELIMITER = "dws_page"


def source_of(content: str) -> str:
    """The source of a policy that allows this inline content."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def policy_of(style: str, script: str) -> str:
    """The Content-Security-Policy of a page with this style and script. Its icon is made by the script: a data: URL."""
    return "; ".join([
        "default-src 'none'",
        f"script-src {source_of(script)}",
        f"style-src {source_of(style)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ])


def join(html: str, style: str, script: str) -> str:
    """The page.

    Raises:
      ValueError: the sources cannot be one page.
    """
    for part, name, end in ((style, "style", "</style"), (script, "script", "</script")):
        if end in part.lower():
            raise ValueError(f"the {name} contains {end}, which ends it: write it in another way")
        if html.count(f"<!-- {name} -->") != 1:
            raise ValueError(f"the HTML has {html.count(f'<!-- {name} -->')} places for the {name}, expected 1")
        html = html.replace(f"<!-- {name} -->", f"<{name}>{part}</{name}>")
    if f"){DELIMITER}\"" in html:
        raise ValueError(f"the page contains ){DELIMITER}\", which ends a raw string of C++")
    return html


def main() -> int:
    html, style, *scripts = (Path(path).read_text(encoding="utf-8") for path in sys.argv[1:])
    script = "".join(scripts)
    print(f"""// Made by common/service/http/page/embed.py.
#pragma once

#include <string_view>

namespace dws {{
inline constexpr std::string_view kFrontPage = R"{DELIMITER}({join(html, style, script)}){DELIMITER}";
inline constexpr std::string_view kFrontPagePolicy = "{policy_of(style, script)}";
}}  // namespace dws""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
