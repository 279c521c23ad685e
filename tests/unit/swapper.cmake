harmony_test(swapper_core_test
  SOURCES swapper/core/slot_ledger_test.cc
  DEPS harmony_swapper_core LABELS pure)
harmony_test(swapper_transfer_test
  SOURCES swapper/transfer/sim_copy_test.cc
  DEPS harmony_swapper_transfer LABELS sanitize TIMEOUT 60)
