// Messages as JSON in protobuf's mapping: field names as in the .proto files, unset fields
// included, 64-bit integers as strings.
#pragma once

#include <string>

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace dws::dwsctl {

// On one line, without a line end.
std::string ToJsonLine(const google::protobuf::Message& message);
// Also readable for people: indented, with a line end.
std::string ToJsonText(const google::protobuf::Message& message);

}  // namespace dws::dwsctl
