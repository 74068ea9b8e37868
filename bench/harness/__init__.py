"""What all benchmarks share: options, prompts, reports, plots and a server to measure."""
