harmony_test(swapper_core_test
  SOURCES swapper/core/slot_ledger_test.cc
  DEPS harmony_swapper_core LABELS pure)
