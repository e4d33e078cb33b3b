// The fake HTTP server of a rollout engine (engine_server.py), run as a child process of a test.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/service/http/http_caller.h"

namespace dws {

// Also ignores SIGPIPE in the test. Lifecycle: the process ends with it. Threads: one at a time.
class EngineServer {
 public:
  struct Wish {
    std::string kind = "sglang";
    std::string model;  // folder of the checkpoint it starts with
    std::string token = "";
    std::vector<std::string> without = {};  // endpoints it does not have
    uint16_t port = 0;
    std::string pem = "";      // file with certificate and key: HTTPS
    std::string ca_file = "";  // the CA that signed it
  };

  explicit EngineServer(const Wish& wish);
  ~EngineServer();
  EngineServer(const EngineServer&) = delete;
  EngineServer& operator=(const EngineServer&) = delete;

  uint16_t port() const { return port_; }
  std::string url() const;

  // See engine_server.py.
  void Tell(const nlohmann::json& what) const;
  // Makes `endpoint` misbehave `times` times; 0: from now on.
  void Misbehave(const std::string& endpoint, const std::string& how, int times = 0,
                 nlohmann::json more = nlohmann::json::object()) const;
  nlohmann::json State() const;
  // The paths of the calls so far, in order.
  std::vector<std::string> Calls() const;
  // The calls of one endpoint: {"path", "query", "body"}.
  std::vector<nlohmann::json> CallsOf(const std::string& endpoint) const;
  // Waits for the process to end by itself.
  void AwaitEnd();
  void Kill();

 private:
  nlohmann::json Fake(HttpMethod method, const std::string& body) const;

  pid_t pid_ = -1;
  uint16_t port_ = 0;
  bool tls_ = false;
  std::unique_ptr<HttpCaller> caller_;
};

// Writes `tensors` (U8) as model.safetensors into `folder`.
void WriteCheckpoint(const std::string& folder, const std::map<std::string, std::string>& tensors);

}  // namespace dws
