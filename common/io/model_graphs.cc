#include "common/io/model_graphs.h"

#include <openssl/evp.h>

#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/graphs/layer_check.h"
#include "common/io/file.h"

namespace harmony::io {

std::string GraphDigest(absl::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  // It fails where OpenSSL was built without SHA-256: no name is that of any file then.
  if (EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    return "";
  }
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

namespace {

absl::StatusOr<GraphOfModel> ReadGraph(const std::string& directory, const std::string& digest) {
  GraphOfModel graph;
  graph.path = JoinPath(directory, absl::StrCat("graphs/", digest, ".json"));
  HARMONY_ASSIGN_OR_RETURN(const std::string text,
                           ReadWholeFile(graph.path, limits::kMostFileBytes));
  const std::string actual = GraphDigest(text);
  if (actual != digest) {
    return absl::DataLossError(absl::StrCat(graph.path, ": the SHA-256 of its contents is ", actual,
                                            ", not its name: copy or export the model again"));
  }
  HARMONY_ASSIGN_OR_RETURN(graph.file, graphs::ParseGraphFile(text, graph.path));
  return graph;
}

}  // namespace

absl::StatusOr<std::vector<GraphOfModel>> ReadGraphs(const std::string& directory,
                                                     const model::ExportedModel& exported) {
  std::vector<GraphOfModel> read(exported.graphs.size());
  for (size_t i = 0; i < exported.layers.size(); ++i) {
    const auto number = static_cast<size_t>(exported.layers[i].graph);
    GraphOfModel& graph = read[number];
    if (graph.path.empty()) {
      absl::StatusOr<GraphOfModel> made = ReadGraph(directory, exported.graphs[number].digest);
      if (!made.ok()) {
        return WithContext(made.status(), absl::StrCat("layer ", exported.layers[i].name));
      }
      graph = *std::move(made);
    }
    HARMONY_RETURN_IF_ERROR(graphs::CheckLayer(exported, static_cast<int>(i), graph.file));
  }
  return read;
}

}  // namespace harmony::io
