// What ends is kept, and renewed five minutes before its end; if that fails, the old keys serve on
// while they last. A file and the environment are read for each request: who rotates keys has only
// to write them.
#include "common/transport/s3/credentials.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/file_system.h"
#include "common/base/log/log.h"
#include "common/base/printable.h"
#include "common/base/threads/mutex.h"
#include "common/formats/strict_json.h"
#include "common/service/http/http_caller.h"
#include "common/service/http/http_url.h"
#include "common/service/http/secret_file.h"
#include "common/transport/s3/reply_xml.h"

namespace dws::s3 {
namespace {

constexpr size_t kFileBytesMax = 64 << 10;
constexpr size_t kAnswerBytesMax = 64 << 10;
constexpr size_t kReasonBytesMax = 200;
constexpr std::chrono::seconds kPatience{5};  // for one request
constexpr std::chrono::minutes kRenewBefore{5};
constexpr std::chrono::seconds kRenewAgain{30};  // asks at most so often while keys serve
constexpr std::string_view kInstanceAddress = "http://169.254.169.254";
constexpr std::string_view kContainerAddress = "http://169.254.170.2";
// Those of a container's agent; others could read the token on its way.
constexpr std::array<std::string_view, 3> kContainerHosts = {"169.254.170.2", "169.254.170.23",
                                                             "fd00:ec2::23"};

struct EndingKeys {
  Credentials keys;
  UnixTime end;
};
using Environment = std::function<std::string(const std::string& name)>;

std::string Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  const size_t end = text.find_last_not_of(kBlanks);
  return std::string(text.substr(begin, end == std::string_view::npos ? 0 : end + 1 - begin));
}

// A header's value, which may have blanks inside: "Basic abc".
bool IsHeaderValue(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 0x7f; });
}

bool IsPlain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

Result<Credentials> Checked(Credentials keys, std::string_view where) {
  for (const std::string* each :
       {&keys.access_key_id, &keys.secret_access_key, &keys.session_token}) {
    if (!IsPlain(*each)) {
      return FailedPreconditionError("{}: a key has blanks or unusual characters", where);
    }
  }
  return keys;
}

// The keys in `get`'s values. `where` is for the message.
Result<Credentials> KeysOf(const Environment& get, std::string_view where, const std::string& id,
                           const std::string& secret, const std::string& token) {
  Credentials keys{
      .access_key_id = get(id), .secret_access_key = get(secret), .session_token = get(token)};
  if (keys.access_key_id.empty() || keys.secret_access_key.empty()) {
    return FailedPreconditionError("{}: expected {} and {}, and one is missing", where, id, secret);
  }
  return Checked(std::move(keys), where);
}

Result<Credentials> KeysOfEnvironment(const Environment& environment) {
  return KeysOf(environment, "the environment", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
                "AWS_SESSION_TOKEN");
}

// "2026-11-29T17:00:00Z", perhaps with a fraction.
std::optional<UnixTime> TimeOf(const std::string& text) {
  std::tm utc = {};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &utc);
  if (end == nullptr || (*end != 'Z' && *end != '.')) return std::nullopt;
  return UnixTime(std::chrono::seconds(::timegm(&utc)));
}

Result<EndingKeys> Ending(Credentials keys, const std::string& end, std::string_view where) {
  if (keys.access_key_id.empty() || keys.secret_access_key.empty() || keys.session_token.empty()) {
    return FailedPreconditionError(
        "{}: expected keys and a session token in the answer, and one is missing", where);
  }
  const auto until = TimeOf(end);
  if (!until.has_value()) {
    return FailedPreconditionError("{}: expected an end as 2026-01-31T12:00:00Z, found \"{}\"",
                                   where, EscapeUnprintable(end.substr(0, kReasonBytesMax)));
  }
  DWS_ASSIGN_OR_RETURN(keys, Checked(std::move(keys), where));
  return EndingKeys{.keys = std::move(keys), .end = *until};
}

// The keys that an instance's or a container's metadata has.
Result<EndingKeys> KeysOfJson(const std::string& text, std::string_view where) {
  const auto parsed = ParseStrictJson(text, std::string(where));
  if (!parsed.ok()) return FailedPreconditionError("{}", Message(parsed.status()));
  const nlohmann::json& json = *parsed;
  const auto get = [&](const char* name) {
    const auto found = json.is_object() ? json.find(name) : json.end();
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (const std::string code = get("Code"); !code.empty() && code != "Success") {
    return FailedPreconditionError("{}: {}: {}", where,
                                   EscapeUnprintable(code.substr(0, kReasonBytesMax)),
                                   EscapeUnprintable(get("Message").substr(0, kReasonBytesMax)));
  }
  return Ending({.access_key_id = get("AccessKeyId"),
                 .secret_access_key = get("SecretAccessKey"),
                 .session_token = get("Token")},
                get("Expiration"), where);
}

// Asks who gives keys. Used by one thread at a time.
class Asker {
 public:
  Asker(std::string where, Cancellation* cancellation)
      : where_(std::move(where)), cancellation_(cancellation) {}

  const std::string& where() const { return where_; }

  // The body of an answer with status 200. `explain`: what a refusal's body says.
  Result<std::string> Ask(
      const HttpUrl& url, const HttpCall& call, const std::string& ca_file = "",
      const std::function<std::string(const std::string&)>& explain = nullptr) const {
    DWS_ASSIGN_OR_RETURN(
        const auto caller,
        HttpCaller::Create(url, {.ca_file = ca_file, .answer_bytes_max = kAnswerBytesMax}));
    const HttpOutcome outcome = caller->Call(
        call, kPatience, [this] { return cancellation_ != nullptr && cancellation_->cancelled(); });
    if (!outcome.answer.ok()) {
      return MakeStatus(
          outcome.answer.status().code(),
          fmt::format("{}: {}: {}", where_, url.HostPort(), Message(outcome.answer.status())));
    }
    if (outcome.answer->code == 200) return outcome.answer->body;
    const std::string why = explain != nullptr ? explain(outcome.answer->body) : "";
    const std::string words =
        fmt::format("{}: {} answers with status {}{}", where_, url.HostPort(), outcome.answer->code,
                    why.empty() ? "" : ": " + EscapeUnprintable(why));
    return outcome.answer->code >= 500 ? UnavailableError("{}", words)
                                       : FailedPreconditionError("{}", words);
  }

 private:
  const std::string where_;
  Cancellation* const cancellation_;
};

Result<std::string> ReadToken(const std::string& path, std::string_view what) {
  // Orchestrators mount tokens with modes of their own.
  DWS_ASSIGN_OR_RETURN(const auto bytes, PosixFileSystem().ReadFile(path, kFileBytesMax));
  std::string token = Trimmed(AsText(bytes));
  if (token.empty() || !IsPlain(token)) {
    return FailedPreconditionError("{}: expected {} in one line, found {} bytes", path, what,
                                   bytes.size());
  }
  return token;
}

// Asked for keys that end. Threads: safe from any; one asks at a time.
class KeptKeys {
 public:
  KeptKeys(std::function<Result<EndingKeys>()> ask, const WallClock& clock)
      : ask_(std::move(ask)), clock_(clock) {}

  Result<Credentials> Get() {
    MutexLock lock(mutex_);
    const UnixTime now = clock_.Now();
    if (kept_.has_value() && now < std::max(kept_->end - kRenewBefore, not_before_) &&
        now < kept_->end) {
      return kept_->keys;
    }
    auto asked = ask_();
    // Keys that end sooner than they would be renewed are not asked for at each request.
    not_before_ = now + kRenewAgain;
    if (asked.ok()) {
      kept_ = *std::move(asked);
      if (now < kept_->end - kRenewBefore) not_before_ = {};
      return kept_->keys;
    }
    if (!kept_.has_value() || now >= kept_->end) return asked.status();
    LogWarning("store_keys_not_renewed", {{"reason", Message(asked.status())}});
    return kept_->keys;
  }

 private:
  const std::function<Result<EndingKeys>()> ask_;
  const WallClock& clock_;
  Mutex mutex_;
  std::optional<EndingKeys> kept_ GUARDED_BY(mutex_);
  UnixTime not_before_ GUARDED_BY(mutex_) = {};
};

Result<CredentialSource> Keep(const CredentialOptions& options,
                              std::function<Result<EndingKeys>()> ask) {
  const auto kept = std::make_shared<KeptKeys>(std::move(ask), *options.wall_clock);
  return CredentialSource([kept] { return kept->Get(); });
}

Result<CredentialSource> OfWebIdentity(const CredentialOptions& options) {
  const std::string file = options.environment("AWS_WEB_IDENTITY_TOKEN_FILE");
  const std::string role = options.environment("AWS_ROLE_ARN");
  if (file.empty() || role.empty()) {
    return FailedPreconditionError(
        "web identity: expected AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN in the environment, "
        "and one is missing");
  }
  const std::string session = options.environment("AWS_ROLE_SESSION_NAME");
  const std::string given = options.environment("AWS_ENDPOINT_URL_STS");
  DWS_ASSIGN_OR_RETURN(
      const HttpUrl url,
      ParseHttpUrl(given.empty() ? fmt::format("https://sts.{}.amazonaws.com", options.region)
                                 : given));
  if (!url.tls && !url.IsLoopback()) {
    return InvalidArgumentError("AWS_ENDPOINT_URL_STS: the token would travel unencrypted to {}",
                                url.ToString());
  }
  const Asker asker("web identity", options.cancellation);
  const auto explain = [](const std::string& body) {
    const auto xml = ReadXml(body);
    if (!xml.ok()) return std::string();
    return fmt::format("{}: {}", TextOf(*xml, "ErrorResponse/Error/Code"),
                       TextOf(*xml, "ErrorResponse/Error/Message"))
        .substr(0, kReasonBytesMax);
  };
  return Keep(options, [=, ca = given.empty() ? "" : options.ca_file]() -> Result<EndingKeys> {
    DWS_ASSIGN_OR_RETURN(const std::string token, ReadToken(file, "a web identity's token"));
    const std::string form = QueryText({{"Action", "AssumeRoleWithWebIdentity"},
                                        {"Version", "2011-06-15"},
                                        {"RoleArn", role},
                                        {"RoleSessionName", session.empty() ? "dws" : session},
                                        {"WebIdentityToken", token}});
    const HttpCall call{.method = HttpMethod::kPost,
                        .target = "/",
                        .headers = {{"Content-Type", "application/x-www-form-urlencoded"}},
                        .body = form};
    DWS_ASSIGN_OR_RETURN(const std::string answer, asker.Ask(url, call, ca, explain));
    const auto xml = ReadXml(answer);
    if (!xml.ok()) return FailedPreconditionError("web identity: {}", Message(xml.status()));
    const auto get = [&xml](const char* name) {
      return TextOf(*xml, fmt::format("AssumeRoleWithWebIdentityResponse/"
                                      "AssumeRoleWithWebIdentityResult/Credentials/{}",
                                      name));
    };
    return Ending({.access_key_id = get("AccessKeyId"),
                   .secret_access_key = get("SecretAccessKey"),
                   .session_token = get("SessionToken")},
                  get("Expiration"), asker.where());
  });
}

// The URL of a container's agent, which may have a path and a query.
struct AgentAddress {
  HttpUrl url;
  std::string target;
};

Result<AgentAddress> AgentOf(const CredentialOptions& options) {
  const std::string relative = options.environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string text = relative.empty()
                               ? options.environment("AWS_CONTAINER_CREDENTIALS_FULL_URI")
                               : std::string(kContainerAddress) + relative;
  const size_t host = text.find("://");
  const size_t slash = text.find('/', host == std::string::npos ? 0 : host + 3);
  DWS_ASSIGN_OR_RETURN(HttpUrl url, ParseHttpUrl(text.substr(0, slash)));
  const bool local =
      url.IsLoopback() || std::ranges::find(kContainerHosts, url.host) != kContainerHosts.end();
  if (!url.tls && !local) {
    return InvalidArgumentError(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI: expected https, this machine or an agent's address, "
        "found {}",
        url.ToString());
  }
  std::string target = slash == std::string::npos ? "/" : text.substr(slash);
  if (!IsPlain(target)) return InvalidArgumentError("a container's URI has unusual characters");
  return AgentAddress{.url = std::move(url), .target = std::move(target)};
}

Result<CredentialSource> OfContainer(const CredentialOptions& options) {
  DWS_ASSIGN_OR_RETURN(const AgentAddress agent, AgentOf(options));
  const std::string file = options.environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  const std::string given = options.environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (!IsHeaderValue(given)) {
    return FailedPreconditionError(
        "AWS_CONTAINER_AUTHORIZATION_TOKEN: expected one line of ASCII, found {} bytes with others",
        given.size());
  }
  const Asker asker("container metadata", options.cancellation);
  return Keep(options, [=]() -> Result<EndingKeys> {
    HttpCall call{.target = agent.target};
    std::string token = given;
    if (!file.empty()) {
      DWS_ASSIGN_OR_RETURN(token, ReadToken(file, "the container's token"));
    }
    if (!token.empty()) call.headers.emplace_back("Authorization", token);
    DWS_ASSIGN_OR_RETURN(const std::string answer, asker.Ask(agent.url, call));
    return KeysOfJson(answer, asker.where());
  });
}

// By a session, as version 2 of the service demands.
Result<CredentialSource> OfInstance(const CredentialOptions& options) {
  const std::string given = options.environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  DWS_ASSIGN_OR_RETURN(const HttpUrl url, ParseHttpUrl(given.empty() ? kInstanceAddress : given));
  const Asker asker("instance metadata", options.cancellation);
  return Keep(options, [=]() -> Result<EndingKeys> {
    const HttpCall begin{.method = HttpMethod::kPut,
                         .target = "/latest/api/token",
                         .headers = {{"X-aws-ec2-metadata-token-ttl-seconds", "60"}}};
    DWS_ASSIGN_OR_RETURN(const std::string session, asker.Ask(url, begin));
    const std::string roles = "/latest/meta-data/iam/security-credentials/";
    HttpCall call{.target = roles, .headers = {{"X-aws-ec2-metadata-token", session}}};
    DWS_ASSIGN_OR_RETURN(std::string role, asker.Ask(url, call));
    role = Trimmed(role.substr(0, role.find('\n')));
    if (role.empty() || !IsPlain(role)) {
      return FailedPreconditionError("{}: the instance has no role", asker.where());
    }
    call.target = roles + EscapeUrl(role, false);
    DWS_ASSIGN_OR_RETURN(const std::string answer, asker.Ask(url, call));
    return KeysOfJson(answer, asker.where());
  });
}

}  // namespace

Result<Credentials> ReadCredentials(const std::string& path) {
  DWS_ASSIGN_OR_RETURN(const std::string text,
                       ReadSecretFile(path, "the store's credentials", kFileBytesMax));
  std::map<std::string, std::string, std::less<>> values;
  bool ours = true;  // lines before the first profile, too
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string line = Trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t equals = line.find('=');
    if (line.starts_with('[')) {
      ours = line == "[default]";
    } else if (ours && !line.starts_with('#') && equals != std::string::npos) {
      values[Trimmed(line.substr(0, equals))] = Trimmed(line.substr(equals + 1));
    }
  }
  const auto get = [&values](const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::string() : found->second;
  };
  return KeysOf(get, path, "aws_access_key_id", "aws_secret_access_key", "aws_session_token");
}

Result<CredentialSource> OpenCredentials(CredentialOptions options) {
  if (options.environment == nullptr) {
    options.environment = [](const std::string& name) {
      const char* const value = std::getenv(name.c_str());
      return std::string(value == nullptr ? "" : value);
    };
  }
  const Environment& environment = options.environment;
  const auto has = [&](const std::string& name) { return !environment(name).empty(); };
  const bool in_container =
      has("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") || has("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (options.from == "environment") {
    return CredentialSource([environment] { return KeysOfEnvironment(environment); });
  }
  if (options.from == "web-identity") return OfWebIdentity(options);
  if (options.from == "instance") return in_container ? OfContainer(options) : OfInstance(options);
  if (!options.from.empty()) {
    return CredentialSource([file = options.from] { return ReadCredentials(file); });
  }
  if (has("AWS_ACCESS_KEY_ID")) {
    return CredentialSource([environment] { return KeysOfEnvironment(environment); });
  }
  if (has("AWS_WEB_IDENTITY_TOKEN_FILE")) return OfWebIdentity(options);
  if (in_container) return OfContainer(options);
  return FailedPreconditionError(
      "there are no keys for the store: expected one of --shared-credentials=FILE, "
      "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, "
      "AWS_CONTAINER_CREDENTIALS_FULL_URI, or --shared-credentials=instance");
}

}  // namespace dws::s3
