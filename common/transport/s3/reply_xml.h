// The XML that an S3-compatible store answers with: a flat view of its elements. Untrusted input.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace dws::s3 {

// Elements with text and no children, in order, by their path from the root:
// {"ListBucketResult/Contents/Key", "a"}.
using Elements = std::vector<std::pair<std::string, std::string>>;

inline constexpr size_t kXmlBytesMax = size_t{4} << 20;

// INVALID_ARGUMENT: it is not XML, has a document type, is nested deeper than 8, has a name of more
// than 64 bytes, more than 20,000 elements, or more than kXmlBytesMax.
Result<Elements> ReadXml(std::string_view text);

// The text of the first element with this path; "": there is none.
std::string TextOf(const Elements& elements, std::string_view path);

}  // namespace dws::s3
