harmony_test(planner_test
  SOURCES coordinator/planner/planner_test.cc
  DEPS harmony_planner LABELS pure)
