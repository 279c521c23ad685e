harmony_test(model_test
  SOURCES common/model/model_config_test.cc common/model/model_spec_test.cc
  DEPS harmony_model LABELS pure)
harmony_test(job_test
  SOURCES common/plan/job_file_test.cc common/plan/job_spec_test.cc common/plan/machine_test.cc
  DEPS harmony_job_file LABELS pure)
harmony_test(profile_test
  SOURCES common/plan/profile_estimate_test.cc common/plan/profile_test.cc
  DEPS harmony_profile_file LABELS pure)
