#pragma once

// What is not wrong with a job, but perhaps not meant.

#include <string>
#include <vector>

#include "common/io/hf_directory.h"
#include "common/job/job_spec.h"
#include "common/model/model_spec.h"

namespace harmony::service {

// Sentences, for who submits it. What an exported model lacks, its export said.
std::vector<std::string> NotesOn(const io::ModelSource& source, const model::ModelSpec& model,
                                 const job::JobSpec& job);

}  // namespace harmony::service
