harmony_test(worker_layers_test
  SOURCES worker/kernels/row_kernels_test.cc worker/layers/layer_chain_test.cc
  DEPS harmony_worker_kernels harmony_worker_layers LABELS pure)
if(HARMONY_WITH_TORCH)
  harmony_test(worker_graphs_test
    SOURCES worker/graphs/exported_fixture.cc worker/graphs/exported_step.cc worker/graphs/graph_compute.cc
            worker/graphs/attention_test.cc worker/graphs/dropout_mask_test.cc worker/graphs/gated_test.cc worker/graphs/graph_errors_test.cc worker/graphs/graph_layer_test.cc worker/graphs/graph_places_test.cc
            worker/graphs/graph_test.cc
            worker/graphs/linear_cross_entropy_test.cc worker/graphs/norms_test.cc worker/graphs/product_test.cc
            worker/graphs/rotary_test.cc
            common/graphs/graph_text.cc
    DEPS harmony_layer_harness harmony_worker_graphs LABELS torch)
  harmony_test(worker_models_test
    SOURCES worker/layers/layer_runner_test.cc worker/layers/stored_gradient_test.cc worker/models/builtin_layers_test.cc
            worker/models/gemm_test.cc worker/models/mixed_precision_test.cc worker/models/kernels_test.cc worker/models/workspace_test.cc
    DEPS harmony_layer_harness harmony_plain_trainer harmony_worker_device LABELS torch TIMEOUT 2400)
  harmony_test(worker_device_test
    SOURCES worker/device/cpu_device_test.cc worker/device/sim_allocator_test.cc
            worker/device/workspace_test.cc
    DEPS harmony_worker_device harmony_io harmony_torch LABELS torch)
  set_tests_properties(worker_graphs_test worker_models_test worker_device_test PROPERTIES
    ENVIRONMENT "OMP_WAIT_POLICY=passive;OMP_NUM_THREADS=2")
endif()
