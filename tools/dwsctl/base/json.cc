#include "tools/dwsctl/base/json.h"

#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include "common/base/check.h"

namespace dws::dwsctl {
namespace {

std::string ToJson(const google::protobuf::Message& message, bool indented) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = indented;
  // Print zeros and false too: a script must find every field.
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  DWS_CHECK(google::protobuf::util::MessageToJsonString(message, &json, options).ok());
  return json;
}

}  // namespace

std::string ToJsonLine(const google::protobuf::Message& message) { return ToJson(message, false); }
std::string ToJsonText(const google::protobuf::Message& message) { return ToJson(message, true); }

}  // namespace dws::dwsctl
