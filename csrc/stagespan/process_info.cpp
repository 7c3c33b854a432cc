// process_info.cpp: rank, job, pipeline and program of this process.
#include "process_info.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "text.h"
#include "variables.h"

namespace stagespan {

namespace {

std::string_view first_of(std::initializer_list<const char*> names) {
  for (const char* const name : names)
    if (const std::string_view text = variable(name); !text.empty()) return text;
  return {};
}

// The common id of a job's processes.
std::string job_name() {
  if (const std::string_view name = variable("STAGESPAN_JOB"); !name.empty()) return std::string(name);
  // The default of torchrun, which all its jobs share.
  if (const std::string_view id = variable("TORCHELASTIC_RUN_ID"); !id.empty() && id != "none") return std::string(id);
  if (const std::string_view id = variable("SLURM_JOB_ID"); !id.empty()) return "slurm-" + std::string(id);
  const std::string_view address = variable("MASTER_ADDR"), port = variable("MASTER_PORT");
  if (!address.empty() && !port.empty()) return std::string(address) + ":" + std::string(port);
  return {};
}

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// "python3.11", but not a process title such as "python: step 3".
bool is_interpreter(std::string_view program) {
  if (!program.starts_with("python") && !program.starts_with("pypy")) return false;
  return std::all_of(program.begin(), program.end(),
                     [](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '-'; });
}

// Servers that run an application, which their arguments name as MODULE:NAME.
bool is_server(std::string_view program) {
  constexpr std::string_view kServers[] = {"uvicorn", "gunicorn", "hypercorn", "daphne", "granian", "waitress-serve"};
  return std::find(std::begin(kServers), std::end(kServers), program) != std::end(kServers);
}

// MODULE:NAME, both of which can have dots.
bool is_application(std::string_view argument) {
  const std::size_t colon = argument.find(':');
  if (colon == std::string_view::npos) return false;
  for (const std::string_view name : {argument.substr(0, colon), argument.substr(colon + 1)}) {
    if (name.empty() || !is_letter(name.front())) return false;
    for (const char c : name)
      if (!is_letter(c) && c != '.' && !(c >= '0' && c <= '9')) return false;
  }
  return true;
}

// The application among a server's arguments; empty if none is recognised.
std::string_view application_in(const std::vector<std::string_view>& arguments) {
  std::string_view application;
  bool follows_option = false;
  for (const std::string_view argument : arguments) {
    // What follows an option may be its value, so another argument is preferred.
    if (is_application(argument) && (application.empty() || !follows_option)) {
      application = argument;
      if (!follows_option) break;
    }
    follows_option = argument.starts_with("-") && argument.find('=') == std::string_view::npos;
  }
  return application;
}

// The value of Celery's option -A, which names the module of the application; empty if there is none.
std::string_view celery_application_in(const std::vector<std::string_view>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with("--app=")) return arguments[i].substr(std::string_view("--app=").size());
    if ((arguments[i] == "-A" || arguments[i] == "--app") && i + 1 < arguments.size()) return arguments[i + 1];
  }
  return {};
}

// The first argument that is a plain word. What follows an option may be its value, and a secret.
std::string word_in(const std::vector<std::string_view>& arguments) {
  constexpr std::size_t kMostLetters = 32;
  bool follows_option = false;
  for (const std::string_view argument : arguments) {
    const bool is_word = !argument.empty() && argument.size() <= kMostLetters && argument.front() != '-' &&
                         std::all_of(argument.begin(), argument.end(), [](char c) { return is_letter(c) || c == '-'; });
    if (is_word && !follows_option) return std::string(argument);
    follows_option = argument.starts_with("-") && argument.find('=') == std::string_view::npos;
  }
  return {};
}

}  // namespace

Program program_in(std::string_view arguments) {
  std::vector<std::string_view> all;
  while (!arguments.empty()) {
    all.push_back(arguments.substr(0, arguments.find('\0')));
    arguments.remove_prefix(std::min(all.back().size() + 1, arguments.size()));
  }
  if (all.empty()) return {};
  const auto after = [&all](std::size_t at) {
    return std::vector<std::string_view>(all.begin() + static_cast<std::ptrdiff_t>(std::min(at + 1, all.size())),
                                         all.end());
  };
  const std::string_view interpreter = last_part(all[0]);
  std::size_t at = 0;
  bool is_module = false;
  if (is_interpreter(interpreter)) {
    for (at = 1; at < all.size() && all[at].starts_with("-"); ++at) {
      if (all[at].starts_with("-c"))
        return {std::string(interpreter) + " -c", word_in(after(all[at] == "-c" ? at + 1 : at))};
      if (all[at] == "-m") {
        is_module = true;
        ++at;
        break;
      }
      if (all[at] == "-W" || all[at] == "-X") ++at;
    }
    if (at >= all.size()) return {std::string(interpreter) + (is_module ? " -m" : ""), {}};
  }
  const std::string_view program = last_part(all[at]);
  const std::vector<std::string_view> args = after(at);
  if (is_server(program) || program == "celery") {
    const std::string_view application = program == "celery" ? celery_application_in(args) : application_in(args);
    return {std::string(program) + (application.empty() ? "" : " ") + std::string(application), word_in(args)};
  }
  const std::string own = at == 0 ? "" : std::string(interpreter) + (is_module ? " -m " : " ");
  return {own + std::string(program), word_in(args)};
}

namespace {

// Python replaces it by the name from its own copy of the arguments, because a process title overwrites this file.
Program program_of_this_process() {
  std::FILE* const file = std::fopen("/proc/self/cmdline", "re");
  if (file == nullptr) return {};
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return program_in(text);
}

}  // namespace

ProcessInfo process_info_from_environment() {
  ProcessInfo info{};
  const auto rank = whole_number(first_of({"RANK", "LOCAL_RANK"}));
  info.rank = rank && *rank <= INT32_MAX ? static_cast<std::int32_t>(*rank) : -1;
  const auto world_size = whole_number(variable("WORLD_SIZE"));
  info.world_size = world_size && *world_size <= INT32_MAX ? static_cast<std::uint32_t>(*world_size) : 0;
  set_text(info.job, job_name());
  set_text(info.service, first_of({"STAGESPAN_JOB", "OTEL_SERVICE_NAME"}));
  const std::string_view pipeline = first_of({"STAGESPAN_PIPELINE_NAME", "TELEFUSER_PIPELINE_NAME"});
  set_text(info.pipeline, pipeline.empty() ? "default" : pipeline);
  const Program program = program_of_this_process();
  set_text(info.program, program.name);
  set_text(info.argument, program.argument);
  set_text(info.name, variable("STAGESPAN_PROCESS_NAME"));
  char host[sizeof(info.host)] = {};
  if (gethostname(host, sizeof(host)) == 0) set_text(info.host, text_in(host));
  return info;
}

}  // namespace stagespan
