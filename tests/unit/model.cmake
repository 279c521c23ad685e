harmony_test(model_test
  SOURCES common/model/exported_model_test.cc common/model/length_polynomial_test.cc
          common/model/gradient_times_test.cc common/model/model_config_test.cc
          common/model/model_spec_test.cc common/model/sum_tree_test.cc
  DEPS harmony_model LABELS pure)
harmony_test(job_test
  SOURCES common/job/goes_on_test.cc common/job/job_file_test.cc common/job/job_spec_test.cc common/job/job_text_test.cc common/job/key_offers_test.cc common/job/parameter_rules_test.cc
          common/plan/gpus_test.cc common/plan/machine_test.cc
  DEPS harmony_job_file harmony_plan harmony_plan_file LABELS pure)
harmony_test(profile_test
  SOURCES common/profile/plausible_test.cc common/profile/profile_estimate_test.cc
          common/profile/profile_test.cc
  DEPS harmony_profile_file LABELS pure)
