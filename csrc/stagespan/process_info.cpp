// process_info.cpp: rank, job, pipeline and program of this process.
#include "process_info.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "text.h"
#include "variables.h"

namespace stagespan {

namespace {

std::string_view first_of(std::initializer_list<const char*> names) {
  for (const char* const name : names)
    if (const std::string_view text = variable(name); !text.empty()) return text;
  return {};
}

// The common id of a job's ranks.
std::string job_name() {
  // The default of torchrun, which all its jobs share.
  if (const std::string_view id = variable("TORCHELASTIC_RUN_ID"); !id.empty() && id != "none") return std::string(id);
  if (const std::string_view id = variable("SLURM_JOB_ID"); !id.empty()) return "slurm-" + std::string(id);
  const std::string_view address = variable("MASTER_ADDR"), port = variable("MASTER_PORT");
  if (!address.empty() && !port.empty()) return std::string(address) + ":" + std::string(port);
  return {};
}

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// The program's name. For an interpreter, also the script or module. Other arguments are left out, because they may
// contain secrets.
std::string program_name() {
  std::string text(4096, '\0');
  std::FILE* const file = std::fopen("/proc/self/cmdline", "re");
  if (file == nullptr) return {};
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  std::string result;
  for (std::size_t at = 0, number = 0; at < text.size(); ++number) {
    const std::string_view argument(text.c_str() + at);
    at += argument.size() + 1;
    if (number == 0) {
      result = last_part(argument);
      if (!result.starts_with("python") && !result.starts_with("pypy")) return result;
      continue;
    }
    if (argument == "-m") {
      result += " -m";
      continue;
    }
    if (argument.starts_with("-")) {
      if (argument.starts_with("-c")) return result + " -c";
      if (argument == "-W" || argument == "-X")
        at += std::string_view(text.c_str() + std::min(at, text.size())).size() + 1;
      continue;
    }
    return result + " " + std::string(last_part(argument));
  }
  return result;
}

template <std::size_t size>
void set(char (&field)[size], std::string_view text) {
  set_text(field, size, text);
}

}  // namespace

ProcessInfo process_info_from_environment() {
  ProcessInfo info{};
  const auto rank = whole_number(first_of({"RANK", "LOCAL_RANK"}));
  info.rank = rank && *rank <= INT32_MAX ? static_cast<std::int32_t>(*rank) : -1;
  const auto world_size = whole_number(variable("WORLD_SIZE"));
  info.world_size = world_size && *world_size <= INT32_MAX ? static_cast<std::uint32_t>(*world_size) : 0;
  set(info.job, job_name());
  const std::string_view pipeline = first_of({"STAGESPAN_PIPELINE_NAME", "TELEFUSER_PIPELINE_NAME"});
  set(info.pipeline, pipeline.empty() ? "default" : pipeline);
  set(info.program, program_name());
  char host[sizeof(info.host)] = {};
  if (gethostname(host, sizeof(host)) == 0) set(info.host, text_in(host, sizeof(host)));
  return info;
}

}  // namespace stagespan
