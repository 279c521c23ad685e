harmony_test(plan_test
  SOURCES common/plan/plan_test.cc
  DEPS harmony_runner LABELS pure)
harmony_test(dispatch_test
  SOURCES coordinator/dispatch/issue/decisions_test.cc coordinator/dispatch/issue/dispatcher_test.cc
          coordinator/runner/failure_test.cc
          coordinator/runner/job_runner_test.cc
          coordinator/runner/owner_of_test.cc coordinator/runner/simulated_runner_test.cc
          coordinator/dispatch/memory/memory_test.cc coordinator/dispatch/issue/overlap_test.cc
          coordinator/dispatch/issue/replicas_test.cc
          coordinator/dispatch/issue/set_recovery_test.cc
          coordinator/dispatch/issue/sums_between_devices_test.cc
  DEPS harmony_sim LABELS pure)
harmony_test(profiled_costs_test
  SOURCES coordinator/dispatch/costs/profiled_costs_test.cc
  DEPS harmony_planner harmony_sim LABELS pure)
harmony_test(bounds_test
  SOURCES coordinator/planner/timing/bounds_test.cc
  DEPS harmony_planner harmony_sim LABELS pure)
harmony_test(moves_test
  SOURCES coordinator/planner/search/moves_test.cc coordinator/planner/search/placement_test.cc
  DEPS harmony_planner LABELS pure)
harmony_test(planner_test
  SOURCES coordinator/planner/fit/fit_advice_test.cc coordinator/planner/fit/given_plan_test.cc
          coordinator/planner/fit/input_check_test.cc coordinator/planner/planner_test.cc coordinator/planner/profile_plan_test.cc
          coordinator/planner/replicas_test.cc
          coordinator/planner/report/bottleneck_test.cc
          common/plan/plan_json_test.cc
  DEPS harmony_planner harmony_sim LABELS pure long)
harmony_test(search_test
  SOURCES coordinator/planner/search/search_test.cc
  DEPS harmony_planner LABELS pure long)
