#include "tests/fakes/engine_server/engine_server.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "common/base/check.h"
#include "common/base/unique_fd.h"

namespace dws {
namespace {

constexpr const char* kPython = "/usr/bin/python3";
constexpr const char* kScript = "tests/fakes/engine_server/engine_server.py";
constexpr std::chrono::seconds kFakeTimeout{20};

uint16_t ReadPort(int pipe) {
  std::string line;
  char c = 0;
  while (::read(pipe, &c, 1) == 1 && c != '\n') line += c;
  constexpr std::string_view kWord = "listening ";
  DWS_CHECK(line.starts_with(kWord));
  return static_cast<uint16_t>(std::atoi(line.c_str() + kWord.size()));
}

}  // namespace

EngineServer::EngineServer(const Wish& wish) : tls_(!wish.pem.empty()) {
  std::vector<std::string> words = {kPython,   kScript,    "--kind", wish.kind,
                                    "--model", wish.model, "--port", std::to_string(wish.port),
                                    "--token", wish.token, "--pem",  wish.pem};
  for (const std::string& endpoint : wish.without) {
    words.insert(words.end(), {"--without", endpoint});
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // as in a daemon
  int ends[2];
  DWS_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  pid_ = ::fork();
  DWS_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(in.get(), STDOUT_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  in.reset();
  port_ = ReadPort(out.get());
  auto url = ParseHttpUrl(this->url());
  DWS_CHECK(url.ok());
  auto caller = HttpCaller::Create(*std::move(url),
                                   {.ca_file = wish.ca_file, .answer_bytes_max = size_t{16} << 20});
  DWS_CHECK(caller.ok());
  caller_ = *std::move(caller);
}

EngineServer::~EngineServer() { Kill(); }

std::string EngineServer::url() const {
  return fmt::format("{}://127.0.0.1:{}", tls_ ? "https" : "http", port_);
}

void EngineServer::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  AwaitEnd();
}

void EngineServer::AwaitEnd() {
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

nlohmann::json EngineServer::Fake(HttpMethod method, const std::string& body) const {
  const HttpOutcome outcome = caller_->Call(
      {.method = method, .target = "/fake", .headers = {}, .body = body}, kFakeTimeout);
  DWS_CHECK(outcome.answer.ok() && outcome.answer->code == 200);
  return nlohmann::json::parse(outcome.answer->body);
}

void EngineServer::Tell(const nlohmann::json& what) const { Fake(HttpMethod::kPost, what.dump()); }

void EngineServer::Misbehave(const std::string& endpoint, const std::string& how, int times,
                             nlohmann::json more) const {
  more["fault"] = endpoint;
  more["do"] = how;
  more["times"] = times;
  Tell(more);
}

nlohmann::json EngineServer::State() const { return Fake(HttpMethod::kGet, ""); }

std::vector<std::string> EngineServer::Calls() const {
  std::vector<std::string> paths;
  const nlohmann::json state = State();
  for (const nlohmann::json& call : state["calls"]) paths.push_back(call["path"]);
  return paths;
}

std::vector<nlohmann::json> EngineServer::CallsOf(const std::string& endpoint) const {
  std::vector<nlohmann::json> calls;
  const nlohmann::json state = State();
  for (const nlohmann::json& call : state["calls"]) {
    if (call["path"] == endpoint) calls.push_back(call);
  }
  return calls;
}

void WriteCheckpoint(const std::string& folder, const std::map<std::string, std::string>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, bytes] : tensors) {
    header[name] = {{"dtype", "U8"},
                    {"shape", {bytes.size()}},
                    {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::ofstream file(folder + "/model.safetensors", std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file << text << data;
  DWS_CHECK(file.good());
}

}  // namespace dws
