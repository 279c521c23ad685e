harmony_test(graphs_test
  SOURCES common/graphs/graph_file_test.cc common/graphs/graph_text.cc
  DEPS harmony_graphs LABELS pure)
