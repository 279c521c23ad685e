harmony_test(plan_test
  SOURCES common/plan/plan_test.cc
  DEPS harmony_dispatch_core LABELS pure)
harmony_test(dispatch_core_test
  SOURCES coordinator/core/decisions_test.cc coordinator/core/dispatcher_test.cc
          coordinator/core/failure_test.cc
          coordinator/core/job_runner_test.cc
          coordinator/core/memory_test.cc coordinator/core/replicas_test.cc
  DEPS harmony_sim harmony_recording LABELS pure)
harmony_test(profiled_costs_test
  SOURCES coordinator/core/profiled_costs_test.cc
  DEPS harmony_planner LABELS pure)
harmony_test(bounds_test
  SOURCES coordinator/planner/bounds_test.cc
  DEPS harmony_planner LABELS pure)
harmony_test(planner_test
  SOURCES coordinator/planner/fit_advice_test.cc coordinator/planner/given_plan_test.cc
          coordinator/planner/planner_test.cc common/plan/plan_json_test.cc
  DEPS harmony_planner LABELS pure long)
harmony_test(search_test
  SOURCES coordinator/planner/search_test.cc
  DEPS harmony_planner LABELS pure long)
